"""One engine with the drafter beside itself without it, asked in turn: each ratio is of two samples taken one after the other.

Times are a client's, prompts included. Greedy, so that both sides write the same text and do the same work.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.conformance.subjects import Subject
from dflash2_core.engines import Generated
from dflash2_core.sampling import SamplingParams

TO_WARM_UP = 4
"""Tokens of every prompt before anything is timed: what is slow once only, and prompts that an engine remembers."""

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What came of one number of requests at once.

    size           requests at once
    plain          tokens per second of each round without the drafter     drafted  with it, in the same order
    num_texts      texts that both sides wrote                             num_identical  of these, in ids
    acceptance     what the engine counted with the drafter
    answers        of the drafting side, all rounds
    """

    size: int
    plain: list[float]
    drafted: list[float]
    num_texts: int
    num_identical: int
    acceptance: AcceptanceStats
    answers: list[Generated] = field(repr=False)

    @property
    def speed_up(self) -> float:
        """Median of the rounds' ratios; above 1 the drafter pays."""
        return statistics.median(drafted / plain for drafted, plain in zip(self.drafted, self.plain, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON: every sample, and the medians."""
        return {
            "requests_at_once": self.size,
            "speed_up": self.speed_up,
            "tokens_per_s": {"plain": statistics.median(self.plain), "drafted": statistics.median(self.drafted)},
            "samples": {"plain": self.plain, "drafted": self.drafted},
            "texts": {"compared": self.num_texts, "identical": self.num_identical},
            "acceptance": self.acceptance.to_dict(),
        }


def compare(
    plain: Subject,
    drafted: Subject,
    prompts: Prompts,
    params: SamplingParams,
    *,
    size: int,
    rounds: int,
    after_round: Callable[[], None] = lambda: None,
) -> Batch:
    """`rounds` times all prompts on either side, `size` at once; who begins changes every round.

    plain, drafted  both running: servers, or the core's own engine
    params          greedy, of every request
    after_round     called after each, for a progress bar
    """
    for subject in (plain, drafted):
        _asked(subject, prompts, replace(params, max_new_tokens=TO_WARM_UP), size)
    before, answers = drafted.acceptance(), []
    speeds: dict[bool, list[float]] = {False: [], True: []}
    num_identical = 0
    for turn in range(rounds):
        texts = {}
        for drafts in (False, True)[:: -1 if turn % 2 else 1]:
            begin = time.perf_counter()
            wrote = _asked(drafted if drafts else plain, prompts, params, size)
            spent = time.perf_counter() - begin
            texts[drafts] = [answer.token_ids for answer in wrote]
            speeds[drafts].append(sum(map(len, texts[drafts])) / spent)
            if drafts:
                answers += wrote
        num_identical += sum(a == b for a, b in zip(texts[False], texts[True], strict=True))
        after_round()
    return Batch(
        size=size,
        plain=speeds[False],
        drafted=speeds[True],
        num_texts=rounds * len(prompts),
        num_identical=num_identical,
        acceptance=drafted.acceptance().since(before),
        answers=answers,
    )


def _asked(subject: Subject, prompts: Prompts, params: SamplingParams, size: int) -> list[Generated]:
    return [answer for at in range(0, len(prompts), size) for answer in subject.generate_ids(prompts[at : at + size], params)]
