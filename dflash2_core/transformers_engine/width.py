"""How many drafts a cycle asks for: always the same, or as many as pay by what is measured."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

FORGET = 0.98  # what is kept of a figure with each cycle that renews it
PROBE_SHARE = 0.01  # of the time may go into trying widths that were not the best
TRIAL_SHARE = 0.01  # of the time may go into trying a drafter that does not pay
FIRST_REST, LONGEST_REST = 64, 4096  # cycles without a draft, where none pays, until it is tried again
DOUBT = 2.0  # accepted drafts that a trial may not have shown yet: see `Auto._tokens_per_second`
FIRST_TRIAL, TRIAL = 12, 4  # cycles of whole blocks, at most, before it is judged at first, and after a rest


class Width(Protocol):
    """Drafts a cycle, 0 .. num_drafts."""

    def choose(self, rows: int) -> int:
        """For a cycle of so many requests."""
        ...

    @property
    def rest(self) -> int:
        """Cycles from now on that will certainly ask for no draft."""
        ...

    def note(self, width: int, accepted: Sequence[tuple[int, int]], seconds: float) -> None:
        """A cycle of this width: drafts verified and accepted, a pair a request, and what it took."""
        ...


class Fixed:
    """As many as the block holds."""

    rest = 0

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts

    def choose(self, rows: int) -> int:
        return self.num_drafts

    def note(self, width: int, accepted: Sequence[tuple[int, int]], seconds: float) -> None:
        pass


class Auto:
    """The width with the most tokens a second: tokens by how often each position was accepted, seconds as they were measured.

    0 is among them. A drafter that does not pay is left alone and tried again after a rest, so long that trials take no more
    than their share, and twice as long each time that it still does not. Only the number of passes depends on the width, and
    where blocks begin: greedy ids do not.
    """

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts
        self._reached = [0.0] * num_drafts  # cycles in which position i was verified, those before it all accepted
        self._accepted = [0.0] * num_drafts
        self._by_rows: dict[int, dict[int, float]] = {}  # what a cycle takes depends on how many share it
        self._seconds: dict[int, float] = {}
        self._until_probe = 0.0
        self._probes = 0
        self.rest, self._next_rest, self._trial = 0, FIRST_REST, FIRST_TRIAL
        self._tried, self._tried_tokens = Counter[int](), 0.0  # cycles by width since the last rest, and what they gave a row

    def choose(self, rows: int) -> int:
        self._seconds = self._by_rows.setdefault(rows, {})
        if self.rest > 0:
            self.rest -= 1
            if self.rest == 0:
                self._begin_trial()
            return 0
        untried = [width for width in (self.num_drafts, 0, self.num_drafts // 2) if width not in self._seconds]
        if untried:
            return untried[0]
        if self._trial > 0 and self._may_pay():
            self._trial -= 1
            return self.num_drafts
        best = max(range(self.num_drafts + 1), key=self._tokens_per_second)
        if best == 0:
            self.rest = min(max(self._next_rest, self._rest_that_pays_for_the_trial()), LONGEST_REST)
            self._next_rest = 2 * self.rest
            return 0
        self._next_rest = FIRST_REST
        self._until_probe -= 1
        if self._until_probe > 0:
            return best
        probe = self._next_probe(best)
        self._until_probe = max(8.0, self._seconds_of(probe) / self._seconds_of(best) / PROBE_SHARE)
        return probe

    def note(self, width: int, accepted: Sequence[tuple[int, int]], seconds: float) -> None:
        known = self._seconds.get(width)
        # A hiccup of the machine is no cost of the width: nothing counts for more than twice what is known, and what was known
        # is forgotten where it was a hiccup itself.
        anew = known is None or 2 * seconds < known
        self._seconds[width] = seconds if known is None or anew else known + 0.1 * (min(seconds, 2 * known) - known)
        self._tried[width] += 1
        self._tried_tokens += 1 + sum(kept for _, kept in accepted) / max(len(accepted), 1)
        for drafted, kept in accepted:
            for i in range(min(drafted, kept + 1)):
                self._reached[i] = FORGET * self._reached[i] + 1
                self._accepted[i] = FORGET * self._accepted[i] + (i < kept)

    def _begin_trial(self) -> None:
        """What was seen before the rest counts no more than what the trial will show."""
        self._trial, self._tried, self._tried_tokens = TRIAL, Counter(), 0.0
        weight = min(1.0, TRIAL / max(self._reached[0], 1.0))
        self._reached = [weight * each for each in self._reached]
        self._accepted = [weight * each for each in self._accepted]

    def _may_pay(self) -> bool:
        """Whether some width would be worth its while if more were accepted than was seen so far."""
        plain = 1 / self._seconds_of(0)
        return any(self._tokens_per_second(width, doubt=DOUBT) > plain for width in range(1, self.num_drafts + 1))

    def _rest_that_pays_for_the_trial(self) -> int:
        """In plain cycles: what was tried since the last rest took longer than as many tokens would have without drafts."""
        plain = self._seconds_of(0)
        took = sum(cycles * self._seconds_of(width) for width, cycles in self._tried.items())
        return int((took / plain - self._tried_tokens) / TRIAL_SHARE)

    def _next_probe(self, best: int) -> int:
        """The neighbours in turn, and now and then the whole block, which alone tells of the last positions."""
        self._probes += 1
        wanted = (best + 1, best - 1, self.num_drafts)[self._probes % 3]
        return wanted if wanted <= self.num_drafts and wanted != best else 0

    def _tokens_per_second(self, width: int, doubt: float = 0.5) -> float:
        """doubt: cycles that nobody saw, in which a draft was accepted, beside half a one in which it was not."""
        tokens, runs = 1.0, 1.0
        for reached, accepted in zip(self._reached[:width], self._accepted[:width], strict=True):
            runs *= (accepted + doubt) / (reached + doubt + 0.5)
            tokens += runs
        return tokens / self._seconds_of(width)

    def _seconds_of(self, width: int) -> float:
        """Measured, or on the line between the measured widths beside it."""
        if width in self._seconds:
            return self._seconds[width]
        below = max(w for w in self._seconds if w < width)
        above = min(w for w in self._seconds if w > width)
        share = (width - below) / (above - below)
        return self._seconds[below] + share * (self._seconds[above] - self._seconds[below])
