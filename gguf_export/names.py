"""Names: of the architecture's keys, and of tensors, canonical (z-lab) and GGUF's. The table of the reference, `gguf.md`."""

from dflash2_core.config import DrafterConfig
from dflash2_core.config.shapes import optional_tensor_shapes, tensor_shapes

ARCHITECTURE = "dflash"
PREFIX = f"{ARCHITECTURE}."
WHOLE = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
}
OF_A_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}


def gguf_names(config: DrafterConfig) -> dict[str, str]:
    """Canonical name -> GGUF name of every tensor that a drafter of `config` has or may have, in order of use.

    A mask row has no name of its own: it lies in the embedding.
    """
    names = (*tensor_shapes(config), *(name for name in optional_tensor_shapes(config) if name != "mask_embedding"))
    return {name: _gguf_name(name) for name in names}


def _gguf_name(canonical: str) -> str:
    if canonical in WHOLE:
        return WHOLE[canonical]
    _, layer, name = canonical.split(".", 2)
    return f"blk.{layer}.{OF_A_LAYER[name]}"
