"""A drafter of DFlash 1, which SGLang by itself would draft greedily at every temperature: the same ids, the same law."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash2_sglang.server import SglangServer
from tests.engines.pair import thirty_prompts
from tests.sglang.asking import ask, ask_sampled, assert_drafted, endings, ids
from tests.sglang.conftest import Told
from tests.sglang.drafters import write_dflash1
from tests.sglang.servers import running
from tests.sglang.test_sampled import drafting_of, law_of


@pytest.fixture(scope="module")
def first(drafted: Told, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    drafter = write_dflash1(tmp_path_factory.mktemp("dflash1"))
    with running(logs / "dflash1.log", drafter=drafter) as server:
        yield server


def test_greedily_no_id_changes(first: SglangServer, plain: Told) -> None:
    answers = ask(first, thirty_prompts(), {})
    assert ids(answers) == ids(plain.cases["greedy"])
    assert endings(answers) == endings(plain.cases["greedy"])
    assert_drafted(answers)


def test_above_temperature_0_drafts_are_drawn_and_the_law_is_the_targets(first: SglangServer) -> None:
    name = "temperature 1"
    answers = ask_sampled(first, [name], times=2)[name]
    report, stats = law_of(name, answers), drafting_of(answers)
    print(report, f"acceptance length {stats.mean_acceptance_length:.3f}")
    assert report.lossless, str(report)
    assert stats.num_accepted > 0
    assert stats.mean_acceptance_length > 1.1
