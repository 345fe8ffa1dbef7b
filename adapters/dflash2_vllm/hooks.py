"""Everything of vLLM that this adapter touches or leans on, with the signatures it expects; and whether they are there.

`plugin.register` reads the table before it changes anything: one difference, and nothing is changed.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

TESTED = "0.32.0"
"""The vLLM that this project's tests run with, as its distribution counts."""
AS_EXPECTED = "as expected"


@dataclass(frozen=True, kw_only=True)
class Hook:
    """A function or class of vLLM.

    place       "module:Name" or "module:Class.name"
    parameters  their names in order; a class is called like its __init__
    use         what is done with it
    """

    place: str
    parameters: tuple[str, ...]
    use: str


def _hook(place: str, parameters: str, use: str) -> Hook:
    return Hook(place=place, parameters=tuple(parameters.split()), use=use)


ARGUMENTS = "vllm.engine.arg_utils:EngineArgs.create_speculative_config"
GATE = "vllm.config.vllm:VllmConfig._get_v1_model_runner_unsupported_features"
PROPOSER = "vllm.v1.spec_decode.dflash:DFlashProposer"
RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
MODEL = "vllm.model_executor.models.qwen3_dflash2:DFlash2Qwen3ForCausalLM"
NORMALIZE = "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model._normalize_context_k"
TOP_K = "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_only"
SCHEDULED = "vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule"
SAMPLE = f"{RUNNER}._sample"
BOOKKEEPING = f"{RUNNER}._bookkeeping_sync"
EXPAND = "vllm.utils.cpu_triton_utils:_expand_kernel_impl"

TABLE = (
    _hook(ARGUMENTS, "self target_model_config target_parallel_config", "wrapped: what was asked for is checked and completed"),
    _hook(GATE, "self", "wrapped: DFlash 2 is no reason any more, what does not fit is one"),
    _hook(PROPOSER, "vllm_config device runner", "a subclass takes its place"),
    _hook(
        f"{PROPOSER}.set_inputs_first_pass",
        "self target_token_ids next_token_ids target_positions target_hidden_states token_indices_to_sample cad "
        "num_rejected_tokens_gpu",
        "overridden: anchors are noted, positions past the limit are kept out of the cache",
    ),
    _hook(
        f"{PROPOSER}.propose",
        "self num_speculative_tokens target_token_ids target_positions target_hidden_states next_token_ids "
        "token_indices_to_sample common_attn_metadata sampling_metadata mm_embed_inputs num_rejected_tokens_gpu slot_mappings",
        "overridden: rows may have no drafts",
    ),
    _hook(
        f"{PROPOSER}._sample_draft_tokens",
        "self hidden_states sampling_metadata",
        "overridden: candidates, walk and q",
    ),
    _hook(f"{PROPOSER}.load_model", "self target_model", "overridden: looks at what was loaded"),
    _hook(f"{PROPOSER}.take_last_draft_probs", "self", "hands q to the runner"),
    _hook(f"{RUNNER}._input_fits_in_drafter", "self common_attn_metadata", "replaced in a runner that drafts with DFlash 2"),
    _hook(f"{RUNNER}._get_draft_token_ids_cpu", "self", "takes drafts as lists where rows differ"),
    _hook(f"{RUNNER}._get_spec_decode_draft_probs", "self spec_decode_metadata", "looks q up by request"),
    _hook(f"{MODEL}.load_weights", "self weights", "wrapped: tensors under either name"),
    _hook(f"{MODEL}.compute_logits", "self hidden_states", "the target's head"),
    _hook(SCHEDULED, "self scheduler_output", "wrapped: a request that joins others is not padded with drafts"),
    _hook(SAMPLE, "self logits spec_decode_metadata", "wrapped where a generator cannot be turned back"),
    _hook(
        BOOKKEEPING,
        "self scheduler_output sampler_output logits hidden_states num_scheduled_tokens",
        "wrapped with it",
    ),
    _hook(NORMALIZE, "self all_k", "replaced where its probe fails"),
    _hook(
        EXPAND,
        "output input_val cu_num_tokens replace_from replace_to MAX_NUM_TOKENS",
        "replaced where its probe fails, before a worker registers it for the Triton kernel",
    ),
    _hook(TOP_K, "logits k", "wrapped where its probe fails"),
)


def find(place: str) -> Any:
    """What stands at `place`; ImportError or AttributeError if nothing does."""
    module, _, path = place.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def replace(place: str, replacement: Any) -> None:
    """Put `replacement` at `place`, which must be there."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = import_module(module)
    for step in owners:
        owner = getattr(owner, step)
    setattr(owner, name, replacement)


def states() -> Mapping[str, str]:
    """Of every hook: AS_EXPECTED, or what was found instead."""
    return {hook.place: _state(hook) for hook in TABLE}


def differences() -> Iterator[str]:
    """Of each hook that is not as expected: a clause that names it."""
    for place, state in states().items():
        if state != AS_EXPECTED:
            yield f"{place} {state}"


def _state(hook: Hook) -> str:
    try:
        found = tuple(inspect.signature(find(hook.place)).parameters)
    except Exception as problem:  # a foreign module may raise anything while it is imported
        return f"is not to be had ({type(problem).__name__}: {problem})"
    if found != hook.parameters:
        return f"takes ({', '.join(found)}) and not ({', '.join(hook.parameters)})"
    return AS_EXPECTED
