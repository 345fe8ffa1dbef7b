"""Engines that are wrong in one way each, behind the same protocol: `verify` finds every one at its default size."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest

from dflash2_core import SamplingParams
from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.assets import tiny_pair
from dflash2_core.conformance.reference import Reference
from dflash2_core.conformance.subjects import Asked, InThisProcess, Subject
from dflash2_core.conformance.verifying import NUM_TOKENS, Trial, VerifyReport, judge
from dflash2_core.drafter import selector
from dflash2_core.engines import Generated

FEW = 1_000


@cache
def reference() -> Reference:
    return Reference(tiny_pair().target, tiny_pair().drafter, parallel=48)


@cache
def trial(num_tokens: int) -> Trial:
    return Trial.of(reference().encode, 7, num_tokens=num_tokens)


@cache
def of_core() -> AcceptanceStats:
    found = reference().acceptance(trial(FEW).greedy)
    assert found is not None
    return found


Answered = tuple[list[Generated], AcceptanceStats]


class Record:
    """An engine that is asked but once: what is sampled has a seed, so that it would say the same again."""

    def __init__(self, subject: InThisProcess) -> None:
        self._subject = subject
        self._known: dict[str, Answered] = {}

    def __call__(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> Answered:
        """The answers, and what was drafted for them."""
        asked = repr((prompts, params))
        if asked not in self._known:
            before = self._subject.acceptance()
            answers = self._subject.generate_ids(prompts, params)
            self._known[asked] = answers, self._subject.acceptance().since(before)
        return self._known[asked]


@cache
def drafting() -> Record:
    return Record(reference().drafted())


@cache
def alone() -> Record:
    return Record(reference().plain())


class Recorded:
    """A subject behind which a record stands, and what it counts itself. This one is sound."""

    takes_seeds = True

    def __init__(self, record: Record) -> None:
        self._record = record
        self._counted = AcceptanceStats()

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]:
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        answers, counted = self._record(prompts, [self.asked(one) for one in each])
        self._counted = AcceptanceStats.total([self._counted, counted])
        return [self.spoilt(one, got) for one, got in zip(each, answers, strict=True)]

    def acceptance(self) -> AcceptanceStats:
        return self._counted

    def asked(self, params: SamplingParams) -> SamplingParams:
        """What is asked of the engine instead."""
        return params

    def spoilt(self, params: SamplingParams, answer: Generated) -> Generated:
        """What is handed on instead."""
        return answer


@cache
def plain() -> Asked:
    return trial(FEW).ask_plain(Recorded(alone()))


def verified(subject: Subject, num_tokens: int) -> VerifyReport:
    asked = trial(num_tokens).ask_drafted(subject)
    return judge(trial(num_tokens), plain(), asked, target=reference().target, of_core=of_core())


class SwapsATokenInAThousand(Recorded):
    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.written = 0

    def spoilt(self, params: SamplingParams, answer: Generated) -> Generated:
        ids = list(answer.token_ids)
        for i in range(len(ids)):
            self.written += 1
            if self.written % 1000 == 0:
                ids[i] = (ids[i] + 1) % reference().target.vocab_size
        return replace(answer, token_ids=ids)


class Tempers(Recorded):
    by = 1.05

    def asked(self, params: SamplingParams) -> SamplingParams:
        return replace(params, temperature=params.temperature * self.by)


class LeaksPastTheEnd(Recorded):
    """A run of drafts that holds an end of sequence is handed out whole."""

    def spoilt(self, params: SamplingParams, answer: Generated) -> Generated:
        if answer.finish_reason != "stop" or params.stop:
            return answer
        return replace(answer, token_ids=[*answer.token_ids, answer.token_ids[-1]])


class HasNoDrafter(Recorded):
    def asked(self, params: SamplingParams) -> SamplingParams:
        return replace(params, speculate=False)


class InventsItsCounters(Recorded):
    """Drafts nothing, and tells of acceptance that would make anybody glad."""

    def asked(self, params: SamplingParams) -> SamplingParams:
        return replace(params, speculate=False)

    def acceptance(self) -> AcceptanceStats:
        passes = super().acceptance().skipped.total()
        return AcceptanceStats(num_cycles=passes, num_drafted=7 * passes, num_accepted=4 * passes, num_committed=5 * passes)


class TellsOfMoreThanItAccepted(Recorded):
    """Drafts, and doubles what was accepted."""

    def acceptance(self) -> AcceptanceStats:
        true = super().acceptance()
        return AcceptanceStats(
            num_cycles=true.num_cycles,
            num_drafted=true.num_drafted,
            num_accepted=2 * true.num_accepted,
            num_committed=2 * true.num_accepted + true.num_cycles,
        )


@contextmanager
def softmax_q_for_an_argmax_walk() -> Iterator[None]:
    """Drafts are the best path, and q is what sampling them would have had."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selector, "draw", lambda q, uniforms: q.argmax(-1))
        yield


@pytest.fixture(scope="module")
def sound() -> VerifyReport:
    return verified(Recorded(drafting()), NUM_TOKENS)


def test_the_sound_engine_is_lossless_at_the_default_size(sound: VerifyReport) -> None:
    assert sound.lossless, sound.to_dict()
    assert not sound.differences
    assert not sound.unsteady
    assert sound.laws["all"].to_dict()["num_tokens"] > 0.8 * NUM_TOKENS  # some texts end early
    assert sound.drafting.num_accepted > 10_000
    assert not sound.notes


def test_it_says_what_tempering_it_would_have_found(sound: VerifyReport) -> None:
    assert 1.01 < sound.laws["all"].to_dict()["smallest_tempering"] < 1.05


def test_a_temperature_a_twentieth_off_is_found() -> None:
    report = verified(Tempers(drafting()), NUM_TOKENS)
    assert not report.lossless
    assert not report.laws["all"].lossless
    assert not report.differences


def test_a_softmax_q_for_an_argmax_walk_is_found() -> None:
    with softmax_q_for_an_argmax_walk():
        report = verified(Recorded(Record(reference().drafted())), NUM_TOKENS)  # nothing that was said before
    assert not report.lossless
    assert not report.laws["all"].lossless
    assert not report.differences


def test_a_token_swapped_in_a_thousand_is_found() -> None:
    report = verified(SwapsATokenInAThousand(drafting()), FEW)
    assert not report.lossless
    assert {each.verdict for each in report.differences} == {"not lossless"}


def test_what_leaks_past_the_end_of_sequence_is_found() -> None:
    report = verified(LeaksPastTheEnd(drafting()), FEW)
    assert not report.lossless
    assert report.differences
    assert all(each.expected is None and each.verdict == "not lossless" for each in report.differences)


def test_a_drafter_that_is_off_is_found() -> None:
    report = verified(HasNoDrafter(drafting()), FEW)
    assert not report.lossless
    assert not report.differences
    assert any("the drafter is off" in finding for finding in report.findings)


@pytest.mark.parametrize("mutant", [InventsItsCounters, TellsOfMoreThanItAccepted])
def test_counters_that_are_not_true_are_found(mutant: type[Recorded]) -> None:
    report = verified(mutant(drafting()), FEW)
    assert not report.lossless
    assert not report.differences
    assert any("counters are not true" in finding for finding in report.findings), report.findings


class TakesNoSeeds(Recorded):
    """As SGLang: a request with a seed is refused. Sound otherwise."""

    takes_seeds = False

    def asked(self, params: SamplingParams) -> SamplingParams:
        assert params.seed is None
        return params


class CountsNothingAlone(Recorded):
    """As vLLM without a drafter: there are no counters to be read."""

    def acceptance(self) -> AcceptanceStats:
        raise AssertionError("nothing is counted here")


def test_an_engine_that_takes_no_seeds_is_asked_without() -> None:
    assert verified(TakesNoSeeds(drafting()), FEW).lossless


def test_a_target_alone_is_not_asked_for_counters() -> None:
    asked = trial(FEW).ask_plain(CountsNothingAlone(alone()))
    assert [answer.token_ids for answer in asked.alone] == [answer.token_ids for answer in plain().alone]
