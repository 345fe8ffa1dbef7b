"""Above temperature 0 every token is drawn from the target's own distribution.

The law test holds each token against p, which the core computes from the same weights in float32, the engine's own text before
it. Error rate of a verdict: 1e-6. `LawReport` says what would have been found; the mutants show that it is.
"""

from pathlib import Path

import pytest

from dflash2_core import AcceptanceStats, SamplingParams
from dflash2_core.conformance import LawReport, check_law
from dflash2_sglang.metrics import acceptance
from dflash2_sglang.server import SglangServer
from tests.engines.pair import target
from tests.sglang.asking import SAMPLED, TIMES, Answer, ask_sampled, written
from tests.sglang.conftest import Told
from tests.sglang.mutants import MUTANTS, mutated

ALPHA = 1e-6
LONG = ("temperature 1", "temperature 0.7, top-p 0.9")
"""Laws that some ten thousand tokens each are written under."""
SHOWN_UNDER = {"min_p_ignored": "temperature 1.2, min-p 0.1", "top_k_a_half_more": "temperature 1, top-k 20"}
"""The law that shows a mutant, where it is another than temperature 1."""


def law_of(name: str, answers: list[Answer]) -> LawReport:
    return check_law(target(), written(answers, SamplingParams(**SAMPLED[name])), alpha=ALPHA)


def drafting_of(answers: list[Answer]) -> AcceptanceStats:
    return AcceptanceStats.total(acceptance(answer["meta_info"]) for answer in answers)


@pytest.mark.parametrize("name", SAMPLED)
def test_every_token_is_the_targets_own(name: str, drafted: Told) -> None:
    report, stats = law_of(name, drafted.cases[name]), drafting_of(drafted.cases[name])
    print(report, f"acceptance length {stats.mean_acceptance_length:.3f}")
    assert report.lossless, str(report)
    assert report.num_tokens == TIMES[name] * 1920
    assert report.smallest_tempering < (1.1 if name in LONG else 1.2)
    assert report.smallest_favour < (0.1 if name in LONG else 0.2)
    assert stats.mean_acceptance_length > 1.8


def test_twenty_thousand_tokens_were_tested(drafted: Told) -> None:
    assert sum(len(answer["output_ids"]) for name in LONG for answer in drafted.cases[name]) >= 20_000


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_fails_the_law_test(mutant: str, paged: SglangServer, logs: Path) -> None:
    name = SHOWN_UNDER.get(mutant, "temperature 1")
    with mutated(logs / "paged", mutant):
        answers = ask_sampled(paged, {name: 1})[name]
    assert drafting_of(answers).num_accepted > 0
    report = law_of(name, answers)
    print(mutant, report)
    assert not report.lossless, str(report)


def test_without_a_mutant_the_same_server_passes_it(paged: SglangServer) -> None:
    name = "temperature 1"
    answers = ask_sampled(paged, {name: 1})[name]
    report = law_of(name, answers)
    assert report.lossless, str(report)
    assert drafting_of(answers).num_accepted > 0
