"""The environment: variables that switch the drafter off, change what is kept, or make an engine crawl."""

from collections.abc import Iterator

from dflash2_core.diagnosis.facts import EngineSide
from dflash2_core.diagnosis.finding import Finding

MODES = ("auto", "on", "off")
LLAMA = "LLAMA_ARG_SPEC_"
SYNTHETIC = f"{LLAMA}SYNTH_"
KEPT = "drafts are kept without the target's consent, and the text is not the target's"


def variable_findings(engine: EngineSide) -> Iterator[Finding]:
    """Of one engine; a reason begins with the variable's name."""
    if engine.name == "vllm":
        yield from _switch(engine, "DFLASH2_VLLM", "vLLM")
        yield from _plugins(engine, "VLLM_PLUGINS", "vLLM")
        yield from _runner(engine)
    elif engine.name == "sglang":
        yield from _switch(engine, "DFLASH2_SGLANG", "SGLang")
        yield from _plugins(engine, "SGLANG_PLUGINS", "SGLang")
        yield from _simulated(engine)
    elif engine.name == "llama-cpp":
        yield from _llama(engine)
    yield from _threads(engine)


def _switch(engine: EngineSide, name: str, title: str) -> Iterator[Finding]:
    said = engine.variables.get(name)
    if said == "off":
        yield Finding("error", engine.name, f"{name} is off, with which the plugin does nothing in {title}", f"unset {name}")
    elif said is not None and said not in MODES:
        yield Finding(
            "warning",
            engine.name,
            f"{name} is {said!r}, which is none of {', '.join(MODES)} and is taken for auto",
            f"unset {name}, or say what you mean",
        )


def _plugins(engine: EngineSide, name: str, title: str) -> Iterator[Finding]:
    said = engine.variables.get(name)
    if said is None or (not said and title == "SGLang"):  # SGLang takes an empty one for none
        return
    if "dflash2" not in [part.strip() for part in said.split(",")]:
        reason = f"{name} is {said!r}, with which {title} does not load dflash2"
        yield Finding("error", engine.name, reason, f"add dflash2 to {name}, or unset it")


def _runner(engine: EngineSide) -> Iterator[Finding]:
    if engine.variables.get("VLLM_USE_V2_MODEL_RUNNER") == "1" and engine.variables.get("DFLASH2_VLLM") == "on":
        yield Finding(
            "warning",
            engine.name,
            "VLLM_USE_V2_MODEL_RUNNER is 1, so that vLLM drafts by itself, and DFLASH2_VLLM is on, which asks for the plugin",
            "unset one of the two",
        )


def _simulated(engine: EngineSide) -> Iterator[Finding]:
    said = engine.variables.get("SGLANG_SIMULATE_ACC_LEN")
    if said and _number(said) > 0:
        yield Finding(
            "error",
            engine.name,
            f"SGLANG_SIMULATE_ACC_LEN is {said}: {KEPT}",
            "unset SGLANG_SIMULATE_ACC_LEN",
        )


def _llama(engine: EngineSide) -> Iterator[Finding]:
    for name in sorted(name for name in engine.variables if name.startswith(LLAMA)):
        does = KEPT if name.startswith(SYNTHETIC) else "it changes what is drafted, unseen, and dflash2 serve refuses to start"
        yield Finding("error", engine.name, f"{name} is set: {does}", f"unset {name}")


def _threads(engine: EngineSide) -> Iterator[Finding]:
    """The plugin's route is that of a CPU; elsewhere the engines need no such thing."""
    if engine.report.route != "plugin":
        return
    advised = {"OMP_NUM_THREADS": "the number of cores that are free"}
    if engine.name == "vllm":
        advised["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    missing = {name: value for name, value in advised.items() if name not in engine.variables}
    if missing:
        names = " and ".join(missing)
        yield Finding(
            "warning",
            engine.name,
            f"{names} {'is' if len(missing) == 1 else 'are'} not set: on a CPU that other programs use too it crawls",
            "; ".join(f"set {name} to {value}" for name, value in missing.items()),
        )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
