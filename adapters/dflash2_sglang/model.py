"""SGLang's draft model held against the checkpoint it was loaded from: every tensor is there, every layer sees what it should.

SGLang passes over tensors that it does not know and leaves those that it does not find as they were made; it reads one
causality for all layers, and windows that `use_sliding_window` may have lifted. Here the core's reading counts.
"""

from typing import Any

import torch
from torch import Tensor

from dflash2_core.checkpoint import Checkpoint
from dflash2_core.config import DrafterConfig
from dflash2_core.drafter.rotary import RotaryEmbedding
from dflash2_core.errors import CheckpointError, CompatibilityError

FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
"""Rows of one matrix in SGLang, in this order."""


def adopt(model: Any, checkpoint: Checkpoint, *, positions: int) -> None:
    """Check `model` (SGLang's `DFlashDraftModel` or `DFlash2DraftModel`), and set what SGLang derives otherwise.

    positions  that drafting may come to; tables of rotations are made long enough
    Raises CheckpointError for a tensor that is not in the model as it is stored, CompatibilityError for another rotation.
    """
    missing = [name for name, stored in checkpoint.tensors() if not _holds(model, name, stored, checkpoint.config)]
    if missing:
        raise CheckpointError(
            f"{checkpoint.path}: SGLang's {type(model).__name__} did not take over {len(missing)} of "
            f"{len(checkpoint.tensor_names)} tensors as they are stored: {', '.join(missing[:4])}"
        )
    from sglang.srt.layers.radix_attention import AttentionType

    config = checkpoint.config
    for layer, window, causal in zip(model.layers, config.layer_windows, config.layer_causal, strict=True):
        attention = layer.self_attn
        attention.attn.sliding_window_size = -1 if window is None else window - 1
        attention.attn.attn_type = AttentionType.DECODER if causal else AttentionType.ENCODER_ONLY
        attention.use_table_qk_norm_rope = False  # a kernel in Triton, for bfloat16
        attention.rotary_emb._ensure_cos_sin_cache_length(positions)
        _require_rotation(attention.rotary_emb, config)


def _holds(model: Any, name: str, stored: Tensor, config: DrafterConfig) -> bool:
    parameters = dict(model.named_parameters())
    part = name.split(".")[-2] if "." in name else ""
    if part not in FUSED:
        found = parameters.get(name)
    else:
        fused = parameters.get(name.replace(part, FUSED[part]))
        found = None if fused is None else _rows_of(fused, part, config)
    return found is not None and found.shape == stored.shape and torch.equal(found, stored.to(found.dtype))


def _rows_of(fused: Tensor, part: str, config: DrafterConfig) -> Tensor:
    if FUSED[part] == "qkv_proj":
        keys = config.num_key_value_heads * config.head_dim
        sizes = [config.num_attention_heads * config.head_dim, keys, keys]
    else:
        sizes = [config.intermediate_size] * 2
    parts = [name for name in FUSED if FUSED[name] == FUSED[part]]
    return torch.split(fused, sizes)[parts.index(part)]


def _require_rotation(rotary: Any, config: DrafterConfig) -> None:
    """SGLang's table, cosines then sines [positions, head_dim], against the core's rotation at a few positions."""
    last = config.max_position_embeddings - 1
    at = torch.tensor([0, 1, min(97, last), last])
    cos, sin = RotaryEmbedding(config, torch.device("cpu"))(at[None], torch.float32)
    half = config.head_dim // 2
    table = rotary.cos_sin_cache[at].float()
    expected = torch.cat((cos.reshape(len(at), -1)[:, :half], sin.reshape(len(at), -1)[:, :half]), dim=-1)
    if table.shape != expected.shape or not torch.allclose(table, expected, atol=1e-2):
        raise CompatibilityError(
            f"SGLang turns the drafter's keys otherwise than its config says (rope_parameters {config.rope_parameters}): its "
            "drafts would be useless"
        )
