"""The shape of a new drafter for a given target."""

from dataclasses import dataclass
from typing import Any

from dflash2_core.config import DrafterConfig
from dflash2_core.errors import ConfigError
from dflash2_core.transformers_engine.target import Target

MOST_TAPS = 5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is chosen; the rest of a DrafterConfig is the target's own.

    taps               None: evenly from the first layer to the last but one, five at most
    window             of every layer; None: all of the context
    intermediate_size  None: the target's
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
        intermediate_size=shape.intermediate_size or theirs.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=theirs.num_attention_heads,
        num_key_value_heads=theirs.num_key_value_heads,
        head_dim=getattr(theirs, "head_dim", None) or target.hidden_size // theirs.num_attention_heads,
        vocab_size=target.vocab_size,
        rms_norm_eps=theirs.rms_norm_eps,
        max_position_embeddings=theirs.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": float(theirs.rope_parameters["rope_theta"])},
        layer_windows=(shape.window,) * shape.layers,
        layer_causal=(False,) * shape.layers,
        target_hidden_size=target.hidden_size,
        num_target_layers=target.num_layers,
        eos_token_ids=tuple(sorted(target.eos_token_ids)),
        pad_token_id=getattr(theirs, "pad_token_id", None),
        **(second if shape.version == 2 else {}),
    )


def spread_taps(num_layers: int) -> tuple[int, ...]:
    """Layers spread evenly from the first to the last but one; never the last, whose output engines read differently."""
    count = min(MOST_TAPS, num_layers - 1)
    if count == 1:
        return (0,)
    return tuple(round(i * (num_layers - 2) / (count - 1)) for i in range(count))
