"""Files that cannot be read as what they should be, weights that draft nothing, and a manifest that says otherwise."""

from collections.abc import Iterator

from dflash2_core.checkpoint.reading import listed
from dflash2_core.diagnosis.facts import GGUF, DrafterSide, TargetSide
from dflash2_core.diagnosis.finding import Finding


def drafter_findings(drafter: DrafterSide) -> Iterator[Finding]:
    """Of the drafter's files alone."""
    if drafter.layout == GGUF:
        subject, mend = (
            "drafter's GGUF",
            "export it again from its checkpoint: dflash2 export-gguf DRAFTER --tokenizer-from TARGET",
        )
    else:
        subject, mend = "drafter", "get it again, or see all that is wrong with it: dflash2 inspect " + str(drafter.path)
    for problem in drafter.problems:
        yield Finding("error", subject, problem, mend)
    for difference in drafter.manifest or ():
        reason = f"it is not what its manifest says: {difference}"
        yield Finding("error", "manifest", reason, "get it again; generate, serve, convert and export-gguf refuse it as it is")
    broken = [name for name, weights in drafter.weights.items() if weights.not_finite]
    if broken:
        yield Finding(
            "error", subject, f"values that are no finite numbers in {listed(broken)}: nothing is accepted, silently", mend
        )
    zero = [name for name, weights in drafter.weights.items() if weights.zero]
    if zero:
        reason = f"all zeros, as before training: {listed(zero)}; that part of the drafter does nothing"
        yield Finding("warning", subject, reason, "ask whoever made it whether it was trained to its end")


def target_findings(target: TargetSide) -> Iterator[Finding]:
    """Of the target's files alone."""
    gguf = target.layout == GGUF
    mend = "convert it again with llama.cpp's convert_hf_to_gguf.py" if gguf else "get it again: its config.json is not whole"
    for problem in target.problems:
        yield Finding("error", "target's GGUF" if gguf else "target", problem, mend)
