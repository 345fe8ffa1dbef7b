"""Arguments that make an engine's output another one than the target's, or that cut what it drafts."""

from collections.abc import Iterator, Mapping
from typing import Any

from dflash2_core.diagnosis.arguments import number, options_of, vllm_speculation
from dflash2_core.diagnosis.facts import EngineSide
from dflash2_core.diagnosis.finding import Finding
from dflash2_core.diagnosis.variables import KEPT


def switch_findings(engine: EngineSide) -> Iterator[Finding]:
    """Of the arguments that the user gave this engine. Raises EngineError for those that cannot be read."""
    options = options_of(engine.arguments)
    if engine.name == "vllm":
        yield from _vllm(vllm_speculation(options) or {})
    elif engine.name == "sglang":
        yield from _sglang(options)
    elif engine.name == "llama-cpp":
        yield from _llama(options)


def _vllm(asked: Mapping[str, Any]) -> Iterator[Finding]:
    method = asked.get("rejection_sample_method", "standard")
    invented = sorted(key for key in asked if key.startswith("synthetic_acceptance"))
    if method == "synthetic" or invented:
        said = "rejection_sample_method is synthetic" if method == "synthetic" else f"{invented[0]} is given"
        yield Finding("error", "vllm", f"{said}: {KEPT}", "leave it out: standard is the default")
    elif method != "standard":
        yield Finding(
            "error",
            "vllm",
            f"rejection_sample_method is {method}, which dflash2's plugin refuses: only standard was found lossless",
            "leave it out: standard is the default",
        )
    if asked.get("num_speculative_tokens_per_batch_size") is not None:
        yield Finding(
            "error",
            "vllm",
            "num_speculative_tokens_per_batch_size changes the draft's length with the batch, and the convolutions of DFlash 2 "
            "are built for one",
            "leave it out",
        )


def _sglang(options: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc"):
        threshold = number(options, name)
        if threshold is not None and threshold < 1:
            yield Finding("error", "sglang", f"{name} is {threshold:g}, below 1: {KEPT}", "leave it out: 1 is the default")
    if "--speculative-draft-window-size" in options:
        yield Finding(
            "warning",
            "sglang",
            "--speculative-draft-window-size replaces the windows that the drafter was trained with: fewer drafts are kept, "
            "and on a CPU the start is refused",
            "leave it out",
        )
    if "--speculative-use-block-verification" in options:
        yield Finding(
            "warning",
            "sglang",
            "--speculative-use-block-verification is another rule of keeping drafts, which dflash2's tests never ran",
            "leave it out, or ask dflash2 verify --engine sglang",
        )


def _llama(options: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("--spec-synth-len", "--spec-synth-rates"):
        if name in options:
            yield Finding("error", "llama-cpp", f"{name} is given: {KEPT}", "leave it out: it is for benchmarks")
    sure = number(options, "--spec-draft-p-min", "--draft-p-min")
    if sure:
        yield Finding(
            "warning",
            "llama-cpp",
            f"--spec-draft-p-min is {sure:g}: a draft may be cut where its probability falls below",
            "leave it out: the target decides what is kept",
        )
