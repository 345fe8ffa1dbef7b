"""A drafter of DFlash 1, which SGLang by itself would draft greedily at every temperature: the same ids, the same law."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash2_core import SamplingParams
from dflash2_core.conformance import Written, check_law
from dflash2_sglang.server import SglangServer
from tests.engines.first_version import exercises, first_version
from tests.engines.pair import target, thirty_prompts, written_plainly
from tests.sglang.asking import ask, assert_drafted, ids
from tests.sglang.servers import running
from tests.sglang.test_sampled import ALPHA, drafting_of

TIMES, ROOM = 3, 100
"""How often the exercises are asked, and ids for each to come to its end."""


@pytest.fixture(scope="module")
def first(logs: Path) -> Iterator[SglangServer]:
    with running(logs / "dflash1.log", drafter=first_version()) as server:
        yield server


def test_greedily_no_id_changes(first: SglangServer) -> None:
    """Those of the Transformers engine, which plain SGLang writes too: `test_greedy.py`."""
    answers = ask(first, thirty_prompts(), {})
    assert ids(answers) == [completion.token_ids for completion in written_plainly()]
    reasons = [answer["meta_info"]["finish_reason"]["type"] for answer in answers]
    assert reasons == [completion.finish_reason for completion in written_plainly()]
    assert_drafted(answers)


def test_above_temperature_0_drafts_are_drawn_and_the_law_is_the_targets(first: SglangServer) -> None:
    prompts = TIMES * exercises()
    answers = ask(first, prompts, {"temperature": 1.0, "max_new_tokens": ROOM})
    texts = [Written(prompt, text, SamplingParams(temperature=1.0)) for prompt, text in zip(prompts, ids(answers), strict=True)]
    report, stats = check_law(target(), texts, alpha=ALPHA), drafting_of(answers)
    print(report, f"acceptance length {stats.mean_acceptance_length:.3f}")
    assert report.lossless, str(report)
    assert report.smallest_tempering < 1.2
    assert stats.mean_acceptance_length > 1.8
