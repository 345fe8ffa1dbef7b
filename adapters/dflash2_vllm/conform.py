"""vLLM's own config of the drafter, made to say what the core read.

vLLM reads scale, softcap and embedding scale in one place only, and loses them from speculators' layout; it takes layer_types
at their word where `use_sliding_window` lifts the windows; its defaults differ from the core's. The core's reading decides.
"""

from typing import Any

from dflash2_core.config import DrafterConfig


def conform(hf_config: Any, config: DrafterConfig) -> None:
    """In place. The drafter must be one that `checks` lets pass: one window and one causality for all layers."""
    window, causal = config.layer_windows[0], config.layer_causal[0]
    options = dict(getattr(hf_config, "dflash_config", None) or {})
    for other_name in ("use_swa", "swa_window_size"):
        options.pop(other_name, None)
    hf_config.dflash_config = options | {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        "conv_kernel_size": config.conv_kernel_size,
        "conv_group_size": config.conv_group_size,
        "selector_rank": config.selector_rank,
        "selector_top_k": config.selector_top_k,
        "input_embedding_scale": config.input_embedding_scale,
        "output_multiplier": config.output_multiplier,
        "final_logit_softcapping": config.final_logit_softcapping or 0.0,
        "causal": causal,
    }
    hf_config.is_causal = causal
    hf_config.layer_types = ["full_attention" if window is None else "sliding_attention"] * config.num_hidden_layers
    hf_config.sliding_window = window
    hf_config.eagle_aux_hidden_state_layer_ids = [layer + 1 for layer in config.target_layer_ids]
    hf_config.target_hidden_size = config.target_hidden_size
    hf_config.draft_vocab_size = config.vocab_size
