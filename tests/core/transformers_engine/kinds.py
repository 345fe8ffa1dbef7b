"""Every kind of target with an ordinary key-value cache, as small as it gets, random, in float32."""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from dflash2_core.transformers_engine import Target
from tests.core.toys import EOS, PAD, VOCABULARY, randomise

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "bos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "decoder_sparse_step": 1}
SOFTCAPS = {
    "query_pre_attn_scalar": 8,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
    "attn_implementation": "eager",
}


def _half_sliding(shape: Mapping[str, Any]) -> PreTrainedModel:
    half = shape["num_hidden_layers"] // 2
    return Qwen3ForCausalLM(Qwen3Config(**shape, use_sliding_window=True, sliding_window=8, max_window_layers=half))


def _gpt2(shape: Mapping[str, Any]) -> PreTrainedModel:
    """Other names for the same sizes."""
    names = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    names |= {"n_positions": "max_position_embeddings"}
    names |= {name: name for name in ("vocab_size", "eos_token_id", "pad_token_id", "bos_token_id")}
    return GPT2LMHeadModel(GPT2Config(**{name: shape[ours] for name, ours in names.items()}))


_BUILT: dict[str, Callable[[Mapping[str, Any]], PreTrainedModel]] = {
    "Qwen3": lambda shape: Qwen3ForCausalLM(Qwen3Config(**shape)),
    "Qwen3, half of it sliding": _half_sliding,
    "Qwen3, mixture of experts": lambda shape: Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **EXPERTS)),
    "Qwen2": lambda shape: Qwen2ForCausalLM(Qwen2Config(**shape)),
    "Llama": lambda shape: LlamaForCausalLM(LlamaConfig(**shape)),
    "Llama, scaled rope": lambda shape: LlamaForCausalLM(LlamaConfig(**shape, rope_parameters=LLAMA3)),
    "Mistral, sliding": lambda shape: MistralForCausalLM(MistralConfig(**shape, sliding_window=8)),
    "Gemma2, eager": lambda shape: Gemma2ForCausalLM(Gemma2Config(**shape, sliding_window=8, **SOFTCAPS)),
    "GPT-2": _gpt2,
}
KINDS = tuple(_BUILT)


def target_of(kind: str, **changes: object) -> Target:
    """A target of this kind, with some sizes changed; its greedy text wanders instead of repeating one id."""
    model = _BUILT[kind](SHAPE | changes).eval()
    randomise(model, seed=1, scale=0.6)
    return Target(model)
