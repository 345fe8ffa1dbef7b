"""All that this adapter touches in SGLang, and all that it relies on there, with the signatures that it expects.

Checked before anything is changed: where one line differs, nothing is.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dflash2_sglang.cpu.attention import forward_extend
from dflash2_sglang.cpu.embeddings import extend_forward_kwargs
from dflash2_sglang.requests import validate_request

AS_EXPECTED = "as expected"
TESTED = ("0.5.23",)
"""The versions of SGLang that this project's tests ran with."""


@dataclass(frozen=True)
class Hook:
    """target: a dotted path; parameters: their names, in order; around: what is put around it, None: called or overridden;
    or_without: a last parameter that an older version lacks, and that is not needed."""

    target: str
    parameters: tuple[str, ...]
    around: Callable[..., Any] | None = None
    or_without: str | None = None

    def fits(self, found: tuple[str, ...]) -> bool:
        return found == self.parameters or (*found, self.or_without) == self.parameters


def _handle_dflash(original: Callable[..., None], server_args: Any) -> None:
    from dflash2_sglang.algorithm import handle_dflash

    handle_dflash(original, server_args)


def _create_worker(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    from dflash2_sglang.algorithm import create_worker

    return create_worker(original, algorithm, server_args)


def _add_penalties(original: Callable[..., None], **_: Any) -> None:
    """Nothing: SGLang adds those of a block's first row to all its rows; `Dflash2Worker` does it row by row."""


WORKER = "sglang.srt.speculative.dflash_worker_v2"
BATCH = ("self", "batch", "on_publish", "grammar_barrier", "pp_proxy_tensors")
HOOKS = (
    # Changed. The name DFLASH on a CPU:
    Hook("sglang.srt.arg_groups.speculative_hook._handle_dflash", ("server_args",), _handle_dflash),
    Hook("sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker", ("self", "server_args"), _create_worker),
    # Lossless verification:
    Hook("sglang.srt.managers.scheduler.validate_dflash_request", ("req", "enable_overlap"), validate_request),
    Hook(
        f"{WORKER}.apply_dflash_verify_logits_adjustments",
        ("next_token_logits", "sampling_info", "draft_token_num"),
        _add_penalties,
    ),
    # What SGLang lacks on a CPU:
    Hook(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"),
        forward_extend,
    ),
    Hook(
        "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs",
        ("self", "forward_batch", "pp_proxy_tensors"),
        extend_forward_kwargs,
    ),
    # Called:
    Hook(
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.register",
        ("name", "supports_overlap", "validate_server_args", "spec_class"),
    ),
    Hook(
        "sglang.srt.managers.overlap_utils.FutureMap",
        ("device", "spec_algo", "req_to_token_pool", "needs_cpu_seq_lens", "needs_confidence_relay"),
    ),
    Hook("sglang.srt.arg_groups.overrides.record_foreign_defaults", ("server_args", "source", "resolve")),
    Hook("sglang.srt.utils.async_probe.sanitize_nan_logits", ("logits", "msg")),
    Hook("sglang.srt.mem_cache.memory_pool.KVWriteLoc", ("loc", "swa_loc", "full_loc", "physical")),
    Hook(f"{WORKER}._commit_accept", ("candidates", "accept_len", "bonus_tokens")),
    # Overridden:
    Hook(f"{WORKER}.DFlashWorkerV2", ("server_args", "gpu_id", "nccl_port", "target_worker")),
    Hook(f"{WORKER}.DFlashWorkerV2.forward_batch_generation", BATCH),
    Hook(f"{WORKER}.DFlashWorkerV2._validate_phase1_sampling_support", ("self", "batch")),
    Hook(
        f"{WORKER}.DFlashWorkerV2._propose_selector_block",
        ("self", "draft_logits_output", "bs", "lm_head", "anchor_token_ids", "sampling_info"),
    ),
    Hook(
        f"{WORKER}.DFlashWorkerV2._greedy_sample_from_vocab_parallel_head", ("self", "hidden_states", "lm_head", "chunk_size")
    ),
    Hook(
        f"{WORKER}.DFlashWorkerV2._accept_block",
        (
            "self",
            "candidates",
            "next_token_logits",
            "sampling_info",
            "draft_input",
            "prefix_lens",
            "bs",
            "target_predict",
        ),
        or_without="target_predict",  # 0.5.22
    ),
)
CHOICES = "sglang.srt.arg_groups.choices.DRAFT_ATTENTION_BACKEND_CHOICES"
"""A list; torch_native is appended."""


def states() -> dict[str, str]:
    """Each target -> `AS_EXPECTED`, or what was found instead. Imports them."""
    found = {hook.target: _state(hook) for hook in HOOKS}
    return found | {CHOICES: _state_of_choices()}


def differences(found: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((target, state) for target, state in found.items() if state != AS_EXPECTED)


def apply() -> None:
    """Put everything in place; `states` was asked before."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in HOOKS:
        if hook.around is not None:
            HookRegistry.register(hook.target, hook.around, HookType.AROUND)
    choices = pkgutil.resolve_name(CHOICES)
    if "torch_native" not in choices:
        choices.append("torch_native")


def _state(hook: Hook) -> str:
    try:
        found = tuple(inspect.signature(pkgutil.resolve_name(hook.target)).parameters)
    except Exception as problem:  # an engine that imports half may raise anything
        return f"not there ({type(problem).__name__}: {problem})"
    if not hook.fits(found):
        return f"has the parameters ({', '.join(found)}), expected ({', '.join(hook.parameters)})"
    return AS_EXPECTED


def _state_of_choices() -> str:
    try:
        choices = pkgutil.resolve_name(CHOICES)
    except Exception as problem:
        return f"not there ({type(problem).__name__}: {problem})"
    return AS_EXPECTED if isinstance(choices, list) else f"is a {type(choices).__name__}, expected a list"
