"""One engine after the other, each with the drafter beside itself without it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash2_core.benchmarks.comparing import Batch, Prompts, compare
from dflash2_core.conformance.drafting import findings
from dflash2_core.conformance.under_test import UnderTest
from dflash2_core.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one engine reached. facts: what ran, name -> value; findings: what speaks against its figures, as sentences."""

    engine: str
    facts: dict[str, str]
    batches: list[Batch]
    findings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        batches = [batch.to_dict() for batch in self.batches]
        return {"engine": self.engine, "facts": self.facts, "batches": batches, "findings": self.findings}


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """machine   what it ran on, in words          new_tokens  of each request, at most
    left_out  engine -> why it was not measured
    """

    machine: str
    rounds: int
    num_prompts: int
    new_tokens: int
    measured: list[Measured]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def findings(self) -> list[str]:
        """Of all engines."""
        return [f"{measured.engine}: {finding}" for measured in self.measured for finding in measured.findings]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "num_prompts": self.num_prompts,
            "new_tokens": self.new_tokens,
            "engines": [measured.to_dict() for measured in self.measured],
            "left_out": self.left_out,
        }


def measure(
    tested: UnderTest,
    prompts: Prompts,
    *,
    sizes: Sequence[int],
    rounds: int,
    new_tokens: int,
    num_drafts: int,
    after_round: Callable[[], None] = lambda: None,
) -> Measured:
    """Both sides of one engine run at once, and are stopped.

    sizes       numbers of requests at once, each at most `tested.options.parallel`
    num_drafts  of a full block, with which the engine's counters are checked
    """
    params = SamplingParams(max_new_tokens=new_tokens)
    with tested.plain() as plain, tested.drafted() as drafted:
        batches = [
            compare(plain, drafted, prompts, params, size=size, rounds=rounds, after_round=after_round) for size in sizes
        ]
    found = [finding for batch in batches for finding in _against(batch, num_drafts)]
    return Measured(engine=tested.engine, facts=tested.facts(), batches=batches, findings=list(dict.fromkeys(found)))


def _against(batch: Batch, num_drafts: int) -> list[str]:
    found = findings(batch.acceptance, batch.answers, num_drafts)
    if differing := batch.num_texts - batch.num_identical:
        found.append(
            f"{differing} of {batch.num_texts} texts, {batch.size} at once, are not those of plain decoding: "
            "`dflash2 verify` tells ties from faults"
        )
    return found
