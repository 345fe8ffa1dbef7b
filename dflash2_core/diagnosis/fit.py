"""Does the drafter fit the target: widths, vocabulary, taps, mask token."""

from collections.abc import Iterator

from dflash2_core.compatibility import misfits
from dflash2_core.diagnosis.facts import DrafterSide, TargetSide
from dflash2_core.diagnosis.finding import Finding

MEND = "take the drafter that was made for this target"


def fit_findings(drafter: DrafterSide, target: TargetSide) -> Iterator[Finding]:
    """What `dflash2_core.compatibility` says, and what nobody could say."""
    if drafter.config is None or target.sizes is None:
        return
    for clause in misfits(drafter.config, target.sizes, own=drafter.own):
        yield Finding("error", "fit", clause, MEND)
    if drafter.config.num_target_layers is None:
        taps = ", ".join(map(str, drafter.config.target_layer_ids))
        yield Finding(
            "note",
            "taps",
            f"the drafter does not say how many layers its target has: whether layers {taps} of {target.sizes.num_layers} are "
            "those it was trained on cannot be told",
            "trust whoever made it, or add num_target_layers to its config",
        )
