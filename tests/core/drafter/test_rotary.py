"""Rotary embedding, held against transformers' own."""

from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

from dflash2_core.drafter import rotary
from dflash2_core.drafter.rotary import RotaryEmbedding, inverse_frequencies, rotate
from tests.core.toys import drafter_config, random_drafter

HEAD_DIM, MAX_POSITIONS = 16, 262144
POSITIONS = torch.tensor([[0, 1, 31, 5000, 200_000]])
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "default, base 1e7": {"rope_type": "default", "rope_theta": 1e7},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn, base 1e6, not truncated": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn, attention factor": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
    },
    "yarn, mscale": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.8,
        "mscale_all_dim": 0.5,
    },
    "llama3": {**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 8192},
    "llama3, short original": {**LLAMA3, "rope_theta": 1e4, "factor": 32.0, "original_max_position_embeddings": 256},
}


def peer_config(rope: dict[str, Any]) -> Qwen3Config:
    return Qwen3Config(head_dim=HEAD_DIM, max_position_embeddings=MAX_POSITIONS, rope_parameters=dict(rope))


def ours(rope: dict[str, Any]) -> RotaryEmbedding:
    return RotaryEmbedding(drafter_config(head_dim=HEAD_DIM, max_position_embeddings=MAX_POSITIONS, rope_parameters=dict(rope)))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_and_factor_equal_those_of_transformers(scaling: str) -> None:
    rope = SCALINGS[scaling]
    config = peer_config(rope)
    compute = ROPE_INIT_FUNCTIONS.get(rope["rope_type"], Qwen3RotaryEmbedding.compute_default_rope_parameters)
    expected, factor = compute(config)
    frequencies, scale = inverse_frequencies(HEAD_DIM, rope, MAX_POSITIONS)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert scale == pytest.approx(factor)


def test_the_scalings_differ_from_one_another() -> None:
    """Else a scaling that is read and dropped would pass."""
    base = inverse_frequencies(HEAD_DIM, SCALINGS["default"], MAX_POSITIONS)[0]
    for scaling, rope in SCALINGS.items():
        if rope["rope_type"] != "default":
            plain = inverse_frequencies(HEAD_DIM, rope | {"rope_type": "default"}, MAX_POSITIONS)[0]
            assert not torch.allclose(inverse_frequencies(HEAD_DIM, rope, MAX_POSITIONS)[0], plain, rtol=1e-3), scaling
    assert base[0] == 1.0


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_rotation_equals_that_of_transformers_at_short_and_long_positions(scaling: str) -> None:
    q = torch.randn(1, 4, POSITIONS.shape[1], HEAD_DIM, generator=torch.Generator().manual_seed(0))
    k = torch.randn(1, 2, POSITIONS.shape[1], HEAD_DIM, generator=torch.Generator().manual_seed(1))
    cos, sin = Qwen3RotaryEmbedding(peer_config(SCALINGS[scaling]))(q, POSITIONS)
    rotation = ours(SCALINGS[scaling])(POSITIONS, torch.float32)
    for mine, theirs in zip((rotate(q, rotation), rotate(k, rotation)), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_interleaved_channels_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant pairs channel 2i with 2i + 1, as GPT-J does: both are a rotation, only one is this model's."""

    def gptj(x: torch.Tensor, rotation: rotary.Rotation) -> torch.Tensor:
        cos, sin = rotation
        first, second = x[..., ::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)

    monkeypatch.setitem(globals(), "rotate", gptj)
    with pytest.raises(AssertionError):
        test_a_rotation_equals_that_of_transformers_at_short_and_long_positions("default")


def test_rotations_of_rows_at_different_positions_do_not_mix() -> None:
    rotary_embedding = ours(SCALINGS["default"])
    positions = torch.tensor([[3, 4], [900, 901]])
    cos, sin = rotary_embedding(positions, torch.float32)
    assert cos.shape == sin.shape == (2, 1, 2, HEAD_DIM // 2)
    alone = rotary_embedding(positions[1:], torch.float32)
    assert torch.equal(cos[1:], alone[0])
    assert torch.equal(sin[1:], alone[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_cast_of_the_drafter_does_not_round_the_frequencies(dtype: torch.dtype) -> None:
    drafter = random_drafter(max_position_embeddings=MAX_POSITIONS)
    exact = drafter.rotary.frequencies.clone()
    drafter.to(dtype)
    assert drafter.fc.weight.dtype == dtype
    assert torch.equal(drafter.rotary.frequencies, exact)
    cos, _ = drafter.rotary(POSITIONS, dtype)
    assert cos.dtype == dtype
    expected = (POSITIONS[:, None, :, None] * exact).cos()
    torch.testing.assert_close(cos, expected.to(dtype))


def test_frequencies_rounded_by_a_cast_are_caught() -> None:
    drafter = random_drafter(max_position_embeddings=MAX_POSITIONS)
    exact = drafter.rotary.frequencies.clone()
    drafter.rotary.frequencies = exact.to(torch.bfloat16).float()
    cos, _ = drafter.rotary(POSITIONS, torch.float32)
    assert not torch.allclose(cos, (POSITIONS[:, None, :, None] * exact).cos(), atol=0.1)


def test_frequencies_are_computed_and_never_stored() -> None:
    assert not [name for name in random_drafter().state_dict() if "rotary" in name or "freq" in name]
