"""How many drafts a cycle asks for: always the same, or as many as pay by what is measured."""

from collections.abc import Sequence
from typing import Protocol

FORGET = 0.98  # what is kept of a figure with each cycle that renews it
PROBE_SHARE = 0.01  # of the time may go into trying widths that were not the best
TRIAL_SHARE = 0.01  # of the time may go into trying a drafter that does not pay
FIRST_REST, LONGEST_REST = 64, 4096  # cycles without a draft, where none pays, until it is tried again
DOUBT = 2.0  # accepted drafts that a trial may not have shown yet: see `Acceptance.tokens`
FIRST_TRIAL, TRIAL = 12, 4  # cycles of whole blocks, at most, before it is judged at first, and after a rest
SHORTEST = 1e-9  # seconds, where a clock is too coarse to see any


class Width(Protocol):
    """Drafts a cycle, 0 .. num_drafts. rows: requests that share it."""

    def choose(self, rows: int) -> int:
        """For the next cycle."""
        ...

    def rest(self, rows: int) -> int:
        """Cycles from now on that will certainly ask for no draft."""
        ...

    def note(self, rows: int, width: int, accepted: Sequence[tuple[int, int]], seconds: float) -> None:
        """A cycle of this width: drafts verified and accepted, a pair a request that had some, and what it took."""
        ...


class Fixed:
    """As many as the block holds."""

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts

    def choose(self, rows: int) -> int:
        return self.num_drafts

    def rest(self, rows: int) -> int:
        return 0

    def note(self, rows: int, width: int, accepted: Sequence[tuple[int, int]], seconds: float) -> None:
        pass


class Acceptance:
    """How often each position of a block was accepted, lately."""

    def __init__(self, num_drafts: int) -> None:
        self._reached = [0.0] * num_drafts  # cycles in which position i was verified, those before it all accepted
        self._accepted = [0.0] * num_drafts

    @property
    def cycles(self) -> float:
        """What it rests on."""
        return self._reached[0]

    def note(self, drafted: int, kept: int) -> None:
        for i in range(min(drafted, kept + 1)):
            self._reached[i] = FORGET * self._reached[i] + 1
            self._accepted[i] = FORGET * self._accepted[i] + (i < kept)

    def forget_but(self, cycles: int) -> None:
        """What was seen until now counts no more than so many cycles."""
        weight = min(1.0, cycles / max(self.cycles, 1.0))
        self._reached = [weight * each for each in self._reached]
        self._accepted = [weight * each for each in self._accepted]

    def tokens(self, width: int, doubt: float = 0.5) -> float:
        """Of a cycle, expected, the target's own among them.

        doubt: cycles that nobody saw, in which a draft was accepted, beside half a one in which it was not.
        """
        tokens, runs = 1.0, 1.0
        for reached, accepted in zip(self._reached[:width], self._accepted[:width], strict=True):
            runs *= (accepted + doubt) / (reached + doubt + 0.5)
            tokens += runs
        return tokens


class Auto:
    """The width with the most tokens a second: tokens by how often each position was accepted, seconds as they were measured.

    0 is among them. A drafter that does not pay is left alone and tried again after a rest, so long that trials take no more
    than their share, and twice as long each time that it still does not. What pays is found for each number of requests by
    itself. Only the number of passes depends on the width, and where blocks begin: greedy ids do not.
    """

    def __init__(self, num_drafts: int) -> None:
        self._acceptance = Acceptance(num_drafts)
        self._num_drafts = num_drafts
        self._by_rows: dict[int, _OfRows] = {}

    def choose(self, rows: int) -> int:
        return self._of(rows).choose()

    def rest(self, rows: int) -> int:
        return self._of(rows).rest

    def note(self, rows: int, width: int, accepted: Sequence[tuple[int, int]], seconds: float) -> None:
        self._of(rows).note(width, accepted, max(seconds, SHORTEST))
        for drafted, kept in accepted:
            self._acceptance.note(drafted, kept)

    def _of(self, rows: int) -> "_OfRows":
        if rows not in self._by_rows:
            self._by_rows[rows] = _OfRows(rows, self._num_drafts, self._acceptance)
        return self._by_rows[rows]


class _OfRows:
    """What pays where so many requests share a cycle: the more they are, the more a block costs beside a step."""

    def __init__(self, rows: int, num_drafts: int, acceptance: Acceptance) -> None:
        self.rows, self.num_drafts = rows, num_drafts
        self._acceptance = acceptance
        self._seconds: dict[int, float] = {}  # of a cycle, by its width
        self._drafting = 1.0  # share of the requests that have drafts where any has
        self.rest, self._next_rest = 0, FIRST_REST
        self._trial = 0
        self._took, self._gave = 0.0, 0.0  # since the last rest: seconds, and tokens a request
        self._until_probe = 0.0
        self._probes = 0

    def choose(self) -> int:
        if self.rest > 0:
            self.rest -= 1
            if self.rest == 0:
                self._trial, self._took, self._gave = TRIAL, 0.0, 0.0
                self._acceptance.forget_but(TRIAL)
            return 0
        untried = [width for width in (self.num_drafts, 0, self.num_drafts // 2) if width not in self._seconds]
        if untried:
            return untried[0]
        if (self._trial > 0 or self._acceptance.cycles < FIRST_TRIAL) and self._may_pay():
            self._trial = max(self._trial - 1, 0)
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
        if known is None or 2 * seconds < known:
            self._seconds[width] = seconds
        else:
            self._seconds[width] = known + 0.1 * (min(seconds, 2 * known) - known)
        self._took += self._seconds[width]
        self._gave += 1 + sum(kept for _, kept in accepted) / self.rows
        if width > 0:
            self._drafting += 0.1 * (len(accepted) / self.rows - self._drafting)

    def _may_pay(self) -> bool:
        """Whether some width would be worth its while if more were accepted than was seen so far."""
        plain = 1 / self._seconds_of(0)
        return any(self._tokens_per_second(width, DOUBT) > plain for width in range(1, self.num_drafts + 1))

    def _rest_that_pays_for_the_trial(self) -> int:
        """In plain cycles: what was tried since the last rest took longer than as many tokens would have without drafts."""
        return int((self._took / self._seconds_of(0) - self._gave) / TRIAL_SHARE)

    def _next_probe(self, best: int) -> int:
        """The neighbours in turn, and now and then the whole block, which alone tells of the last positions."""
        self._probes += 1
        wanted = (best + 1, best - 1, self.num_drafts)[self._probes % 3]
        return wanted if wanted <= self.num_drafts and wanted != best else 0

    def _tokens_per_second(self, width: int, doubt: float = 0.5) -> float:
        """Of one request, on the average of all."""
        more = self._acceptance.tokens(width, doubt) - 1
        return (1 + self._drafting * more) / self._seconds_of(width)

    def _seconds_of(self, width: int) -> float:
        """Measured, or on the line between the measured widths beside it."""
        if width in self._seconds:
            return self._seconds[width]
        below = max(w for w in self._seconds if w < width)
        above = min(w for w in self._seconds if w > width)
        share = (width - below) / (above - below)
        return self._seconds[below] + share * (self._seconds[above] - self._seconds[below])
