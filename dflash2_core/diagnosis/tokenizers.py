"""Do an id of the drafter's and the same id of the target's mean the same piece of text?"""

from collections.abc import Iterator

from dflash2_core.config.reading import shown
from dflash2_core.diagnosis.facts import DrafterSide, TargetSide, Tokenizer
from dflash2_core.diagnosis.finding import Finding

SUBJECT = "tokenizer"
MEND = "take the drafter that was made for this target; the same size of a vocabulary does not make it the same"


def tokenizer_findings(drafter: DrafterSide, target: TargetSide) -> Iterator[Finding]:
    """By content, piece by piece; a drafter that brings none uses the target's ids as they are."""
    if target.tokenizer is None:
        if target.sizes is not None:
            reason = "the target comes without a tokenizer that could be read: whether ids mean the same cannot be told"
            yield Finding("warning", SUBJECT, reason, "put its tokenizer.json beside its weights")
        return
    if drafter.tokenizer is None:
        return
    yield from _pieces(drafter.tokenizer, target.tokenizer)
    ours, theirs = drafter.tokenizer.merges, target.tokenizer.merges
    if ours is not None and theirs is not None and ours != theirs:
        place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
        reason = f"the merges differ, first at {place}: {len(ours)} in the drafter's and {len(theirs)} in the target's"
        yield Finding("error", SUBJECT, reason, MEND)


def _pieces(ours: Tokenizer, theirs: Tokenizer) -> Iterator[Finding]:
    both = sorted(ours.tokens.keys() & theirs.tokens.keys())
    if differing := [token for token in both if ours.tokens[token] != theirs.tokens[token]]:
        first = differing[0]
        yield Finding(
            "error",
            SUBJECT,
            f"{len(differing)} of {len(both)} ids are other pieces, first {first}: {shown(ours.tokens[first])} to the drafter, "
            f"{shown(theirs.tokens[first])} to the target",
            MEND,
        )
    elif not both:
        yield Finding("error", SUBJECT, "the drafter's and the target's have no id in common", MEND)
