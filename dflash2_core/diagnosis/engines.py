"""An engine itself: is it there, does it run, is it one that was tested, would it take the pair?"""

from collections.abc import Iterator

from dflash2_core.assets import is_embedded_target
from dflash2_core.config.reading import placed
from dflash2_core.diagnosis.facts import GGUF, DrafterSide, EngineSide, TargetSide
from dflash2_core.diagnosis.finding import Finding, Level
from dflash2_core.diagnosis.variables import variable_findings
from dflash2_core.engines import OWN

BUILD = "build the one that is tested: bash ci/{name}.sh in a checkout of dflash2"
SAID_ELSEWHERE = ("OMP_NUM_THREADS", "at every temperature")
"""Words of adapters' notes that `variables.py` and `greedy_drafts.py` say where they hold."""
FOLDERS = (OWN, "vllm", "sglang")
"""Engines that this project runs on Hugging Face folders; llama.cpp wants a GGUF of the target, and the embedded one's is made
by its adapter."""


def engine_findings(engine: EngineSide) -> Iterator[Finding]:
    """Of one engine, whatever the pair."""
    report, name = engine.report, engine.name
    if engine.absent:
        reason, _, mend = (report.problems or ("it was not found",))[0].partition(": ")
        yield Finding("error" if engine.asked else "note", name, reason, mend or _build(name))
        return
    mend = _build(name) if report.program is not None else f"set {engine.stated} to where it is, or unset it"
    for problem in _unsaid(engine, report.problems):
        if name == OWN:
            problem, _, mend = problem.partition(": ")
        yield Finding("error", name, problem, mend)
    for note in report.notes:
        if not any(words in note for words in SAID_ELSEWHERE):
            yield Finding("note", name, note, "nothing is wrong here: keep it in mind for what you ask of it")
    if not report.problems and not report.tested:
        yield Finding(
            "warning",
            name,
            f"version {report.version or 'unknown'} is not one that dflash2 was tested with",
            f"dflash2 verify TARGET DRAFTER --engine {name} tells whether its output is the target's own",
        )


def pair_findings(engine: EngineSide, target: TargetSide, drafter: DrafterSide) -> Iterator[Finding]:
    """Whether it takes the two in the form that they have, and what its adapter says of them, each reason by itself."""
    if (reason := wrong_form(engine.name, target, drafter)) is not None:
        if engine.name in FOLDERS:
            mend = "give the Hugging Face folders of both"
        else:
            mend = "convert it with llama.cpp's convert_hf_to_gguf.py, and give the file with --target"
        yield Finding("error" if engine.asked else "note", engine.name, reason, mend)
    if engine.refusal is None:
        return
    head, *reasons = engine.refusal.split("\n- ")
    for reason in _unsaid(engine, tuple(reasons) or (head,)):
        level: Level = "error" if engine.asked or wrong_form(engine.name, target, drafter) is None else "warning"
        yield Finding(
            level, engine.name, f"it would not draft with this pair: {reason}", "take another engine, or another drafter"
        )


def wrong_form(name: str, target: TargetSide, drafter: DrafterSide) -> str | None:
    """Why an engine cannot run files of this form, as a clause; None where it can."""
    if name in FOLDERS:
        for side in (target, drafter):
            if side.layout == GGUF:
                return f"it runs folders of Hugging Face checkpoints, and {placed(side.path.name)} is a GGUF"
    elif name == "llama-cpp" and target.layout != GGUF and not is_embedded_target(target.path):
        return f"it runs a GGUF of the target, and {placed(target.path.name)} is a folder"
    return None


def _unsaid(engine: EngineSide, sentences: tuple[str, ...]) -> list[str]:
    """Those that do not repeat what `variables.py` says of the environment."""
    blamed = [finding.reason.split()[0] for finding in variable_findings(engine) if finding.level == "error"]
    return [sentence for sentence in sentences if not any(variable in sentence for variable in blamed)]


def _build(name: str) -> str:
    return BUILD.format(name=name.replace("-", "_"))
