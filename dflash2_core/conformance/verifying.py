"""`dflash2 verify`, without the command: from what two subjects answered to a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.conformance.cases import Case, Encode, greedy_cases, sampled_cases
from dflash2_core.conformance.drafting import compared, findings
from dflash2_core.conformance.identity import TIES, Difference, differences
from dflash2_core.conformance.law import LawReport, Written, check_laws
from dflash2_core.conformance.subjects import Asked, Subject, ask
from dflash2_core.conformance.two_samples import TwoSampleReport, compare_laws

if TYPE_CHECKING:
    from dflash2_core.transformers_engine.target import Target

NUM_TOKENS = 20_000
"""Sampled tokens of the default size."""
FEW_PROMPTS = 4
"""Of a two-sample test: texts have to meet."""
OTHER_SEEDS = 1_000_000


@dataclass(frozen=True)
class Trial:
    """What both subjects are asked. num_drafts: of a full block of the drafter under test."""

    greedy: tuple[Case, ...]
    sampled: tuple[Case, ...]
    num_drafts: int

    @classmethod
    def of(
        cls, encode: Encode, num_drafts: int, *, num_tokens: int = NUM_TOKENS, has_law: bool = True, per_kind: int = 10
    ) -> "Trial":
        """encode: the target's tokenizer; has_law: whether the core can compute the target's distribution."""
        sampled = sampled_cases(encode, num_tokens, num_prompts=None if has_law else FEW_PROMPTS)
        return cls(tuple(greedy_cases(encode, num_drafts, per_kind=per_kind)), tuple(sampled), num_drafts)

    def ask_plain(self, subject: Subject, *, has_law: bool = True) -> Asked:
        """The target alone; its samples are needed where there is no law to hold the other's against."""
        others = [replace(case, params=replace(case.params, seed=_other_seed(case))) for case in self.sampled]
        return ask(subject, self.greedy, () if has_law else others, drafts=False)

    def ask_drafted(self, subject: Subject) -> Asked:
        """The same target with the drafter."""
        return ask(subject, self.greedy, self.sampled, drafts=True)


@dataclass(frozen=True)
class VerifyReport:
    """What was found.

    num_cases        greedy requests by kind, each asked alone and together with the others
    differences      between drafted and plain greedy texts
    unsteady         between the plain texts asked together and alone: the engine's own, not the drafter's
    laws             by sampling options, and of all together; by the core's own distributions, or by two samples
    drafting         what the engine counted over all drafted requests
    findings         what speaks against its drafting, as sentences
    notes            what was not looked at, and why
    """

    num_cases: Mapping[str, int]
    differences: Sequence[Difference]
    unsteady: Sequence[Difference]
    laws: Mapping[str, LawReport | TwoSampleReport]
    drafting: AcceptanceStats
    findings: Sequence[str]
    notes: Sequence[str] = field(default=())

    @property
    def lossless(self) -> bool:
        """Drafts were made and kept, and neither a greedy text nor a law is another one. Ties do not speak against it."""
        faults = [difference for difference in self.differences if difference.verdict != "numeric tie"]
        return not faults and not self.findings and all(law.lossless for law in self.laws.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return {
            "lossless": self.lossless,
            "num_cases": dict(self.num_cases),
            "differences": [each.to_dict() for each in self.differences],
            "unsteady": [each.to_dict() for each in self.unsteady],
            "laws": {name: law.to_dict() for name, law in self.laws.items()},
            "drafting": self.drafting.to_dict(),
            "findings": list(self.findings),
            "notes": list(self.notes),
        }


def judge(
    trial: Trial,
    plain: Asked,
    drafted: Asked,
    *,
    target: "Target | None",
    of_core: AcceptanceStats | None = None,
    alpha: float | None = None,
    tie: float = TIES["float32"],
) -> VerifyReport:
    """The verdict over what was answered.

    target   the same weights in float32, for gaps and laws; None: gaps stay unknown, laws are compared by two samples
    of_core  what the core's own engine counts on the greedy cases with the same drafter; None: not compared
    alpha    error rate of the sampled part; None: 1e-6 with the target, 1e-3 without
    tie      see `identity.TIES`
    """
    found = [
        difference
        for way, answers in (("alone", drafted.alone), ("together", drafted.together))
        for difference in differences(trial.greedy, plain.alone, answers, way=way, target=target, tie=tie)
    ]
    unsteady = differences(trial.greedy, plain.alone, plain.together, way="together", target=target, tie=tie)
    ways = (drafted.alone, drafted.together, drafted.sampled)
    spoken = [
        f"{way}: {sentence}"
        for way, stats, answers in zip(("alone", "together", "sampled"), drafted.drafting, ways, strict=True)
        for sentence in (findings(stats, answers, trial.num_drafts) if answers else [])
    ]
    if of_core is not None:
        spoken += compared(drafted.drafting[0], of_core)
    counts: dict[str, int] = {}
    for case in trial.greedy:
        counts[case.kind] = counts.get(case.kind, 0) + 1
    return VerifyReport(
        num_cases=counts,
        differences=found,
        unsteady=unsteady,
        laws=_laws(trial, plain, drafted, target, alpha),
        drafting=AcceptanceStats.total(drafted.drafting),
        findings=list(dict.fromkeys(spoken)),
        notes=_notes(target, of_core),
    )


def _laws(
    trial: Trial, plain: Asked, drafted: Asked, target: "Target | None", alpha: float | None
) -> Mapping[str, LawReport | TwoSampleReport]:
    if not trial.sampled:
        return {}
    kinds = list(dict.fromkeys(case.kind for case in trial.sampled))
    if target is not None:
        texts = list(zip(trial.sampled, drafted.sampled, strict=True))
        groups = {
            kind: [Written(case.prompt, got.token_ids, case.params) for case, got in texts if case.kind == kind]
            for kind in kinds
        }
        return check_laws(target, groups, alpha=1e-6 if alpha is None else alpha)
    share = (1e-3 if alpha is None else alpha) / len(kinds)
    return {kind: compare_laws(_of_kind(trial, plain, kind), _of_kind(trial, drafted, kind), alpha=share) for kind in kinds}


def _of_kind(trial: Trial, asked: Asked, kind: str) -> list[tuple[object, list[int]]]:
    answered = zip(trial.sampled, asked.sampled, strict=True)
    return [(case.prompt, got.token_ids) for case, got in answered if case.kind == kind]


def _notes(target: "Target | None", of_core: AcceptanceStats | None) -> list[str]:
    notes = []
    if target is None:
        notes.append("the core has not the target's weights: gaps are unknown, laws were compared by two samples")
    if of_core is None:
        notes.append("the engine's acceptance was not compared with the core's")
    return notes


def _other_seed(case: Case) -> int:
    return OTHER_SEEDS + (case.params.seed or 0)
