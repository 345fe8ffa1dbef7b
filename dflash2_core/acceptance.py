"""How well drafting went: the statistics that every engine reports in the same words."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class AcceptanceStats:
    """Counted where the target verifies, not where the drafter promises.

    num_cycles             target passes that verified at least one draft
    num_drafted            drafts verified
    num_accepted           drafts committed
    num_committed          tokens committed by those cycles, recovery and bonus tokens included
    num_cut                cycles ended early by EOS, a stop or the budget: they count only what was committed
    accepted_per_position  [i]: cycles in which draft i + 1 of the block was committed
    drafted_per_position   [i]: cycles in which draft i + 1 was verified
    skipped                reason -> target passes in which nothing was drafted
    """

    num_cycles: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_committed: int = 0
    num_cut: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per verifying target pass, the recovery or bonus token included; 0.0 if there was none."""
        return self.num_committed / self.num_cycles if self.num_cycles else 0.0

    @property
    def num_target_passes(self) -> int:
        """Target passes after the prefill, drafted or not."""
        return self.num_cycles + self.skipped.total()

    def record(self, drafted: int, accepted: int, committed: int) -> None:
        """One cycle: drafts verified, drafts accepted by the target, and tokens that were then really committed."""
        kept = min(accepted, committed)
        self.num_cycles += 1
        self.num_drafted += drafted
        self.num_accepted += kept
        self.num_committed += committed
        self.num_cut += committed < accepted + 1
        for counts, length in ((self.drafted_per_position, drafted), (self.accepted_per_position, kept)):
            counts.extend([0] * (drafted - len(counts)))
            for position in range(length):
                counts[position] += 1

    def skip(self, reason: str) -> None:
        """One target pass without drafts."""
        self.skipped[reason] += 1

    @classmethod
    def total(cls, parts: Iterable["AcceptanceStats"]) -> "AcceptanceStats":
        """The sum over requests: means are then per token, not per request."""
        whole = cls()
        for part in parts:
            whole.num_cycles += part.num_cycles
            whole.num_drafted += part.num_drafted
            whole.num_accepted += part.num_accepted
            whole.num_committed += part.num_committed
            whole.num_cut += part.num_cut
            whole.skipped += part.skipped
            whole.accepted_per_position = _added(whole.accepted_per_position, part.accepted_per_position)
            whole.drafted_per_position = _added(whole.drafted_per_position, part.drafted_per_position)
        return whole

    def since(self, before: "AcceptanceStats") -> "AcceptanceStats":
        """What was counted after `before`, an earlier state of the same counters."""
        return AcceptanceStats(
            num_cycles=self.num_cycles - before.num_cycles,
            num_drafted=self.num_drafted - before.num_drafted,
            num_accepted=self.num_accepted - before.num_accepted,
            num_committed=self.num_committed - before.num_committed,
            num_cut=self.num_cut - before.num_cut,
            accepted_per_position=_added(self.accepted_per_position, [-n for n in before.accepted_per_position]),
            drafted_per_position=_added(self.drafted_per_position, [-n for n in before.drafted_per_position]),
            skipped=self.skipped - before.skipped,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return {
            "num_cycles": self.num_cycles,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "num_committed": self.num_committed,
            "num_cut": self.num_cut,
            "accepted_per_position": list(self.accepted_per_position),
            "drafted_per_position": list(self.drafted_per_position),
            "mean_acceptance_length": self.mean_acceptance_length,
            "skipped": dict(self.skipped),
        }


def _added(a: list[int], b: list[int]) -> list[int]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [value + (shorter[i] if i < len(shorter) else 0) for i, value in enumerate(longer)]
