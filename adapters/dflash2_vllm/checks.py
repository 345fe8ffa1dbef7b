"""What cannot be right on vLLM's V1 runner is a sentence before anything is loaded."""

from collections.abc import Iterator
from typing import Any

from dflash2_core.compatibility import TargetFacts, misfits, special_ids
from dflash2_core.config import DrafterConfig


def problems_of(vllm_config: Any, config: DrafterConfig) -> Iterator[str]:
    """Of a VllmConfig whose drafter is `config`: every reason to refuse it."""
    asked = vllm_config.speculative_config
    for clause in misfits(config, facts_of(vllm_config.model_config)):
        yield f"a DFlash 2 drafter that does not fit the target: {clause}"
    yield from layer_problems(config)
    if asked.num_speculative_tokens > config.num_drafts:
        yield too_many(asked.num_speculative_tokens, config)
    if asked.num_speculative_tokens_per_batch_size is not None:
        yield "draft lengths that change with the batch, since the convolutions of DFlash 2 are built for one block length"
    if asked.rejection_sample_method != "standard":
        yield f"rejection_sample_method {asked.rejection_sample_method!r}, which keeps drafts without the target's consent"
    parallel = vllm_config.parallel_config
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (size := getattr(parallel, name)) > 1:
            yield f"DFlash 2 with {name} {size}: dflash2 drafts on one device only"


def layer_problems(config: DrafterConfig) -> Iterator[str]:
    """V1 has one K/V group and one causality for all of a drafter's layers."""
    if len(set(config.layer_windows)) > 1:
        windows = ", ".join("full" if window is None else str(window) for window in config.layer_windows)
        yield f"a DFlash 2 drafter whose layers have different windows ({windows})"
    if len(set(config.layer_causal)) > 1:
        yield "a DFlash 2 drafter some of whose layers are causal and some are not"


def too_many(asked: int, config: DrafterConfig) -> str:
    """The clause for more drafts than a block holds."""
    return (
        f"{asked} drafts a block: a drafter of block size {config.block_size} makes {config.num_drafts} "
        f"(num_speculative_tokens {config.num_drafts} is its block size {config.block_size})"
    )


def facts_of(model_config: Any) -> TargetFacts:
    """Of vLLM's ModelConfig of the target."""
    text = model_config.hf_text_config
    return TargetFacts(
        hidden_size=model_config.get_hidden_size(),
        vocab_size=model_config.get_vocab_size(),
        num_layers=model_config.get_total_num_hidden_layers(),
        special_ids=special_ids(getattr(text, "eos_token_id", None), getattr(text, "pad_token_id", None)),
    )
