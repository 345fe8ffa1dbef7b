"""Whom to ask: anything that takes ids and gives ids. A running server of an engine is a subject as it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.conformance.cases import Case
from dflash2_core.engines import Generated
from dflash2_core.sampling import SamplingParams

if TYPE_CHECKING:
    from dflash2_core.transformers_engine import Completion, TransformersEngine


class Subject(Protocol):
    """See `dflash2_core.engines.Server`, whose members these are."""

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]: ...

    def acceptance(self) -> AcceptanceStats: ...

    takes_seeds: bool


@dataclass(frozen=True)
class Asked:
    """What a subject answered.

    alone     the greedy cases, one after the other      together  the same, as many at once as it takes
    sampled   the sampled cases, likewise together
    drafting  what it counted meanwhile: alone, together, sampled
    """

    alone: list[Generated]
    together: list[Generated]
    sampled: list[Generated]
    drafting: tuple[AcceptanceStats, AcceptanceStats, AcceptanceStats]


def ask(subject: Subject, greedy: Sequence[Case], sampled: Sequence[Case], *, drafts: bool) -> Asked:
    """All that is asked of one subject, in this order. drafts: whether it has a drafter; without one there are no counters.

    Seeds only make a run repeatable: a subject that takes none is asked without.
    """
    nothing = AcceptanceStats()
    counts = [subject.acceptance() if drafts else nothing]
    alone = [answer for case in greedy for answer in subject.generate_ids([case.prompt], case.params)]
    counts.append(subject.acceptance() if drafts else nothing)
    together = _at_once(subject, greedy)
    counts.append(subject.acceptance() if drafts else nothing)
    drawn = _at_once(subject, sampled)
    counts.append(subject.acceptance() if drafts else nothing)
    first, second, third = (after.since(before) for before, after in pairwise(counts))
    return Asked(alone, together, drawn, (first, second, third))


def _at_once(subject: Subject, cases: Sequence[Case]) -> list[Generated]:
    if not cases:
        return []
    params = [case.params if subject.takes_seeds else replace(case.params, seed=None) for case in cases]
    return subject.generate_ids([case.prompt for case in cases], params)


class InThisProcess:
    """The core's own engine as a subject."""

    takes_seeds = True

    def __init__(self, engine: "TransformersEngine") -> None:
        self.engine = engine
        self._acceptance = AcceptanceStats()

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]:
        """See `Subject`."""
        completions = self.engine.generate([list(prompt) for prompt in prompts], params)
        self._acceptance = AcceptanceStats.total([self._acceptance, *(completion.stats for completion in completions)])
        return [_generated(completion) for completion in completions]

    def acceptance(self) -> AcceptanceStats:
        """See `Subject`."""
        return self._acceptance


def _generated(completion: "Completion") -> Generated:
    return Generated(
        token_ids=completion.token_ids,
        text=completion.text,
        finish_reason=completion.finish_reason,
        num_drafted=completion.stats.num_drafted,
        num_accepted=completion.stats.num_accepted,
    )
