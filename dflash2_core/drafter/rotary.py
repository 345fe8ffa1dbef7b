"""Rotary position embedding in the NeoX pairing, with the scalings that drafter configs use."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dflash2_core.config import DrafterConfig

Rotation = tuple[Tensor, Tensor]
"""cos and sin, each [R, 1, L, head_dim / 2]: broadcasts over heads."""


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """x [R, heads, L, head_dim] -> the same, rotated; channel i is paired with channel i + head_dim / 2."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    turned = (first * cos).addcmul_(second, sin, value=-1), (second * cos).addcmul_(first, sin)
    return torch.cat(turned, dim=-1)


def inverse_frequencies(head_dim: int, rope: Mapping[str, Any], max_positions: int) -> tuple[Tensor, float]:
    """The rotation speeds [head_dim / 2] float32 (radians a position) and the factor on cos and sin.

    rope           `rope_parameters` of a config: `rope_type`, `rope_theta` and the keys of that type
    max_positions  the config's `max_position_embeddings`, which yarn falls back to
    Sources: RoPE (arXiv 2104.09864), linear interpolation (2306.15595), YaRN (2309.00071), Llama 3.1's model card.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / rope["rope_theta"] ** exponents
    match rope["rope_type"]:
        case "linear":
            return frequencies / rope["factor"], 1.0
        case "yarn":
            return _yarn(frequencies, head_dim, rope, max_positions)
        case "llama3":
            return _llama3(frequencies, rope), 1.0
        case _:
            return frequencies, 1.0


def _yarn(frequencies: Tensor, head_dim: int, rope: Mapping[str, Any], max_positions: int) -> tuple[Tensor, float]:
    factor = float(rope["factor"])
    original = rope.get("original_max_position_embeddings") or max_positions

    def channel_that_turns(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    low = channel_that_turns(rope.get("beta_fast") or 32.0)
    high = channel_that_turns(rope.get("beta_slow") or 1.0)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    channels = torch.arange(head_dim // 2, dtype=torch.float32)
    interpolated = ((channels - low) / max(high - low, 1e-3)).clamp(0, 1)
    speeds = frequencies / factor * interpolated + frequencies * (1 - interpolated)
    return speeds, _yarn_attention_factor(factor, rope)


def _yarn_attention_factor(factor: float, rope: Mapping[str, Any]) -> float:
    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return magnitude(rope["mscale"]) / magnitude(rope["mscale_all_dim"])
    return magnitude(1.0)


def _llama3(frequencies: Tensor, rope: Mapping[str, Any]) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    turns = rope["original_max_position_embeddings"] / wavelengths
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    speeds: Tensor = frequencies / rope["factor"] * (1 - kept) + frequencies * kept
    return speeds


class RotaryEmbedding(nn.Module):
    """positions -> Rotation, computed in float32 whatever the model's dtype."""

    frequencies: Tensor

    def __init__(self, config: DrafterConfig, device: torch.device | str = "cpu") -> None:
        super().__init__()
        with torch.device(device):
            frequencies, self.scale = inverse_frequencies(
                config.head_dim, config.rope_parameters, config.max_position_embeddings
            )
        self.register_buffer("frequencies", frequencies, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> "RotaryEmbedding":
        # A dtype cast of the model must not round the frequencies: at position 100,000 bf16 speeds are noise.
        frequencies = self.frequencies
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.frequencies = frequencies.to(self.frequencies.device)
        return self

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """positions [R, L] int64 -> cos and sin [R, 1, L, head_dim / 2] in `dtype`."""
        angles = positions[:, None, :, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        if self.scale != 1.0:
            cos, sin = cos * self.scale, sin * self.scale
        return cos.to(dtype), sin.to(dtype)
