"""Which tensors a drafter consists of: canonical (z-lab) names and shapes. Section 7 of the reference."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash2_core.config.drafter import DrafterConfig

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(config: "DrafterConfig") -> Shapes:
    """Exactly the tensors that a checkpoint of `config` must hold, in order of use."""
    H = config.hidden_size
    shapes: Shapes = {
        "fc.weight": (H, len(config.target_layer_ids) * config.target_hidden_size),
        "hidden_norm.weight": (H,),
    }
    layer = _layer_shapes(config)
    for i in range(config.num_hidden_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes | {"norm.weight": (H,)} | _selector_shapes(config)


def optional_tensor_shapes(config: "DrafterConfig") -> Shapes:
    """What a checkpoint may hold of its own instead of the target's."""
    V, H = config.vocab_size, config.hidden_size
    return {"embed_tokens.weight": (V, H), "lm_head.weight": (V, H), "mask_embedding": (H,)}


def _layer_shapes(config: "DrafterConfig") -> Shapes:
    H, I, D = config.hidden_size, config.intermediate_size, config.head_dim  # noqa: E741
    queries, keys = config.num_attention_heads * D, config.num_key_value_heads * D
    shapes: Shapes = {
        "input_layernorm.weight": (H,),
        "self_attn.q_proj.weight": (queries, H),
        "self_attn.k_proj.weight": (keys, H),
        "self_attn.v_proj.weight": (keys, H),
        "self_attn.o_proj.weight": (H, queries),
        "self_attn.q_norm.weight": (D,),
        "self_attn.k_norm.weight": (D,),
        "post_attention_layernorm.weight": (H,),
        "mlp.gate_proj.weight": (I, H),
        "mlp.up_proj.weight": (I, H),
        "mlp.down_proj.weight": (H, I),
    }
    if config.conv_kernel_size is not None and config.conv_group_size is not None:
        T, groups = config.conv_kernel_size, H // config.conv_group_size
        for conv in ("attention_conv", "mlp_conv"):
            shapes[f"{conv}.base_kernel"] = (2, T, H)
            shapes[f"{conv}.kernel_projection.weight"] = (2 * T * groups, H)
    return shapes


def _selector_shapes(config: "DrafterConfig") -> Shapes:
    if config.selector_rank is None:
        return {}
    V, r = config.vocab_size, config.selector_rank
    return {
        "candidate_selector.predecessor_codebook": (V, r),
        "candidate_selector.successor_codebook": (V, r),
        "candidate_selector.hidden_projection.weight": (r, config.hidden_size),
    }
