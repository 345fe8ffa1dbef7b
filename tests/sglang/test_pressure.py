"""Many requests at once: prompts in chunks, prefixes from the cache, retractions, aborts. The ids stay the same."""

from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any

import pytest

from dflash2_core.errors import EngineError
from dflash2_sglang.server import SglangServer
from tests.engines.pair import thirty_prompts
from tests.sglang.asking import ask, assert_drafted, endings, half, ids
from tests.sglang.conftest import Told

PROMPTS = [*thirty_prompts(), *thirty_prompts()[:2]]
"""Thirty-two: what the server decodes at once."""


def test_thirty_two_requests_in_chunks_with_retractions_change_no_id(pressed: SglangServer, plain: Told) -> None:
    expected = [*plain.cases["greedy"], *plain.cases["greedy"][:2]]
    answers = ask(pressed, PROMPTS, {})
    assert ids(answers) == ids(expected)
    assert endings(answers) == endings(expected)
    assert_drafted(answers)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 5
    assert max(len(prompt) for prompt in PROMPTS) > 32 * 2, "no prompt has three chunks"
    again = ask(pressed, PROMPTS, {})
    assert ids(again) == ids(expected)
    assert_drafted(again)
    assert sum(answer["meta_info"]["cached_tokens"] for answer in again) > sum(map(len, PROMPTS)) / 2


@pytest.mark.parametrize("name", ["presence", "repetition"])
def test_penalties_remember_what_was_written_before_a_retraction(name: str, pressed: SglangServer, plain: Told) -> None:
    asked = {"presence": {"presence_penalty": 0.8}, "repetition": {"repetition_penalty": 1.3}}[name]
    answers = ask(pressed, half(), asked)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 5
    assert ids(answers) == ids(plain.cases[name])
    assert_drafted(answers)


def test_aborted_requests_leave_the_others_as_they_were(pressed: SglangServer, plain: Told) -> None:
    def abort(name: str) -> None:
        pressed.fetch("/abort_request", {"rid": name})

    def long(index: int) -> Any:
        asked = {"max_new_tokens": 1000, "temperature": 0, "ignore_eos": True}
        request = {"input_ids": thirty_prompts()[index], "sampling_params": asked, "rid": f"gone-{index}"}
        try:
            return pressed.generate(request)
        except EngineError as refused:
            return {"refused": str(refused)}

    with ThreadPoolExecutor(2) as threads:
        timers = [Timer(1.0 + index / 2, abort, [f"gone-{index}"]) for index in range(4)]
        for timer in timers:
            timer.start()
        with ThreadPoolExecutor(4) as gone:
            others = threads.submit(ask, pressed, thirty_prompts(), {})
            aborted = list(gone.map(long, range(4)))
            answers = others.result()
    for answer in aborted:
        assert "refused" in answer or answer["meta_info"]["finish_reason"]["type"] == "abort", answer
    assert ids(answers) == ids(plain.cases["greedy"])
    assert_drafted(answers)
    assert ids(ask(pressed, thirty_prompts(), {})) == ids(plain.cases["greedy"])
