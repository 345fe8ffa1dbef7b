"""Greedy texts: is each that of plain decoding, and if not, is it a tie of two numbers or another text?

A pass over one row and a pass over a block may sum in another order. Where two ids are so near each other that this decides,
the texts part, and neither is wrong; anything else is a fault. The core's own logits at that place tell one from the other.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from dflash2_core.conformance.cases import Case
from dflash2_core.engines import Generated

if TYPE_CHECKING:
    from dflash2_core.transformers_engine.target import Target

TIES = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Largest gap of a tie, as a share of the largest logit there, by what the engine computes in: below float32 twice the last bit
of a number of that size, times two for what several layers add up to."""
Verdict = Literal["numeric tie", "not lossless"]


@dataclass(frozen=True)
class Difference:
    """Where a text leaves plain decoding's.

    case      number of the case       kind  what it stands for      way  "alone" or "together"
    position  of the first differing id, counted from the first one written
    expected  plain decoding's id there, None if its text ended before; found: the other's
    gap       between the logits of the two, as a share of the largest; None where it cannot be known
    """

    case: int
    kind: str
    way: str
    position: int
    expected: int | None
    found: int | None
    gap: float | None
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        gap = "gap unknown" if self.gap is None else f"gap {self.gap:.1e} of the largest logit"
        return (
            f"{self.kind} (case {self.case}, {self.way}): token {self.position} is {self.found}, plain decoding has "
            f"{self.expected}; {gap}: {self.verdict}"
        )


def differences(
    cases: Sequence[Case],
    plain: Sequence[Generated],
    drafted: Sequence[Generated],
    *,
    way: str,
    target: "Target | None",
    tie: float,
) -> list[Difference]:
    """Every case whose answer is not plain decoding's.

    target  the weights in float32, None where the core has them not
    tie     largest gap of one, see `TIES`
    """
    found = []
    for number, (case, expected, got) in enumerate(zip(cases, plain, drafted, strict=True)):
        if (position := _parting(case, expected, got)) is None:
            continue
        one, other = (_at(answer.token_ids, position) for answer in (expected, got))
        gap = None if target is None or one is None or other is None else _gap(target, case, expected, position, one, other)
        verdict: Verdict = "numeric tie" if gap is not None and gap <= tie else "not lossless"
        found.append(Difference(number, case.kind, way, position, one, other, gap, verdict))
    return found


def _parting(case: Case, expected: Generated, got: Generated) -> int | None:
    """The first place where two answers differ; None: nowhere."""
    if case.tells_by_text:
        if (expected.text, expected.finish_reason) == (got.text, got.finish_reason):
            return None
    elif (expected.token_ids, expected.finish_reason) == (got.token_ids, got.finish_reason):
        return None
    pairs = zip(expected.token_ids, got.token_ids, strict=False)
    shorter = min(len(expected.token_ids), len(got.token_ids))
    return next((i for i, (one, other) in enumerate(pairs) if one != other), shorter)


def _at(ids: Sequence[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None


@torch.inference_mode()
def _gap(target: "Target", case: Case, expected: Generated, position: int, one: int, other: int) -> float:
    ids = torch.tensor([[*case.prompt, *expected.token_ids[:position]]], device=target.device)
    logits = target.forward(ids, target.new_cache(), rows=1)[0][0, -1].double()
    return float((logits[one] - logits[other]).abs() / logits.abs().max())
