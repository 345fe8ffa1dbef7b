"""The shape of a new drafter for a given target."""

from dataclasses import dataclass
from typing import Any

from dflash2_core.config import DrafterConfig
from dflash2_core.errors import ConfigError
from dflash2_core.transformers_engine.target import Target

MOST_TAPS = 5
MOST_POSITIONS = 32_768  # where the target states no limit
USUAL_BASE = 10_000.0
ROPE_TYPES = ("default", "linear", "yarn", "llama3")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is chosen; the rest of a DrafterConfig is the target's own, or the usual value where the target has none.

    taps               None: evenly from the first layer to the last but one, five at most
    window             of every layer; None: all of the context
    intermediate_size  None: the target's, or 4 times the hidden size
    mask_token_id      None: the tokenizer's mask token
    """

    version: int = 2
    block_size: int = 8
    layers: int = 2
    taps: tuple[int, ...] | None = None
    window: int | None = None
    intermediate_size: int | None = None
    selector_rank: int = 64
    selector_top_k: int = 16
    conv_kernel_size: int = 2
    conv_group_size: int = 16
    mask_token_id: int | None = None


def config_for(target: Target, shape: Shape) -> DrafterConfig:
    """Raises ConfigError if the target has no mask token, or for a shape that no drafter can have."""
    theirs = target.config
    heads, positions = theirs.num_attention_heads, target.context_limit or MOST_POSITIONS
    mask = shape.mask_token_id if shape.mask_token_id is not None else getattr(target.tokenizer, "mask_token_id", None)
    if mask is None:
        raise ConfigError("the target's tokenizer has no mask token: name the id of a token that never occurs in its text")
    second: dict[str, Any] = {
        "selector_rank": shape.selector_rank,
        "selector_top_k": shape.selector_top_k,
        "conv_kernel_size": shape.conv_kernel_size,
        "conv_group_size": shape.conv_group_size,
    }
    return DrafterConfig(
        version=shape.version,
        block_size=shape.block_size,
        target_layer_ids=shape.taps or spread_taps(target.num_layers),
        mask_token_id=mask,
        hidden_size=target.hidden_size,
        intermediate_size=shape.intermediate_size or getattr(theirs, "intermediate_size", None) or 4 * target.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(theirs, "num_key_value_heads", None) or heads,
        head_dim=getattr(theirs, "head_dim", None) or target.hidden_size // heads,
        vocab_size=target.vocab_size,
        rms_norm_eps=getattr(theirs, "rms_norm_eps", None) or 1e-6,
        max_position_embeddings=positions,
        rope_parameters=rope_of(theirs),
        layer_windows=(shape.window,) * shape.layers,
        layer_causal=(False,) * shape.layers,
        target_hidden_size=target.hidden_size,
        num_target_layers=target.num_layers,
        eos_token_ids=tuple(sorted(target.eos_token_ids)),
        pad_token_id=getattr(theirs, "pad_token_id", None),
        **(second if shape.version == 2 else {}),
    )


def rope_of(theirs: Any) -> dict[str, Any]:
    """The target's rope where a drafter can have it, scaling included; else a plain one of the usual base.

    Of a target with one rope for each kind of layer (Gemma 3), that of the full-attention layers.
    """
    rope = dict(getattr(theirs, "rope_parameters", None) or {})
    rope = dict(rope.get("full_attention", rope))
    whole = rope.get("partial_rotary_factor", 1.0) == 1.0
    if whole and rope.get("rope_type") in ROPE_TYPES and "rope_theta" in rope:
        rope.pop("partial_rotary_factor", None)
        return rope
    return {"rope_type": "default", "rope_theta": float(rope.get("rope_theta", USUAL_BASE))}


def spread_taps(num_layers: int) -> tuple[int, ...]:
    """Layers spread evenly from the first to the last but one; never the last, whose output engines read differently."""
    count = min(MOST_TAPS, num_layers - 1)
    if count == 1:
        return (0,)
    return tuple(round(i * (num_layers - 2) / (count - 1)) for i in range(count))
