"""Config files as they were published (reference, section 7), and a small one of the same form."""

from copy import deepcopy
from typing import Any

Mapping = dict[str, Any]

QWEN_27B: Mapping = {
    "architectures": ["DFlash2DraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "is_causal": False,
    "dflash_config": {
        "block_size": 8,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 248070,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [5, 19, 33, 47, 61],
    },
    "dtype": "bfloat16",
    "eos_token_id": 248044,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 17408,
    "layer_types": ["sliding_attention"] * 5,
    "max_position_embeddings": 262144,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 64,
    "pad_token_id": 248044,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "sliding_window": 2048,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": True,
    "vocab_size": 248320,
}

OWN_KEYS = tuple(QWEN_27B["dflash_config"])


def changed(base: Mapping, **changes: Any) -> Mapping:
    """A copy with some keys set; those of `dflash_config` are named by a dict under that name; None removes a key."""
    copy = deepcopy(base)
    for key, value in changes.items():
        if key == "dflash_config" and isinstance(value, dict):
            copy[key] = {k: v for k, v in (copy[key] | value).items() if v is not None}
        elif value is None:
            copy.pop(key, None)
        else:
            copy[key] = value
    return copy


MUSE_30B = changed(
    QWEN_27B,
    dflash_config={
        "block_size": 16,
        "mask_token_id": 201818,
        "output_multiplier": 0.19611613513818404,
        "final_logit_softcapping": 20.0,
        "target_layer_ids": [1, 13, 25, 37, 49],
    },
    hidden_size=6656,
    intermediate_size=19968,
    num_target_layers=52,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_theta": 5e5, "rope_type": "default"},
    vocab_size=202048,
    eos_token_id=None,
    pad_token_id=None,
)

TOY = changed(
    QWEN_27B,
    dflash_config={
        "mask_token_id": 36,
        "target_layer_ids": [0, 2, 4],
        "conv_group_size": 4,
        "selector_rank": 7,
        "selector_top_k": 5,
    },
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    layer_types=["sliding_attention"] * 2,
    max_window_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=37,
    num_target_layers=6,
    sliding_window=4,
    max_position_embeddings=4096,
    eos_token_id=35,
    pad_token_id=34,
)

FIRST_VERSION = changed(
    TOY,
    architectures=["DFlashDraftModel"],
    dflash_config=dict.fromkeys(("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")),
)
