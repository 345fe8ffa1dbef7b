"""What a request asks besides ids: penalties, stops, grammars, log-probabilities; greedy, compared with plain SGLang."""

import json

import pytest

from tests.sglang.asking import (
    CASES,
    CONTEXT,
    SCHEMA,
    Answer,
    assert_drafted,
    assert_log_probabilities_equal,
    endings,
    half,
    ids,
)
from tests.sglang.conftest import Told

CHANGING = ("presence", "frequency", "presence and frequency", "repetition", "bias", "json schema")
"""Cases whose option matters to most texts."""


@pytest.mark.parametrize("name", CASES)
def test_an_option_changes_a_drafted_text_as_it_changes_a_plain_one(name: str, drafted: Told, plain: Told) -> None:
    assert ids(drafted.cases[name]) == ids(plain.cases[name])
    assert endings(drafted.cases[name]) == endings(plain.cases[name])
    assert_drafted(drafted.cases[name])


def pairs(name: str, told: Told) -> list[tuple[list[int], list[int]]]:
    """Each text with this option, and without."""
    return list(zip(ids(told.cases[name]), ids(told.cases["greedy"])[::2], strict=True))


@pytest.mark.parametrize("name", CHANGING)
def test_these_options_change_two_texts_of_three(name: str, plain: Told) -> None:
    assert sum(a != b for a, b in pairs(name, plain)) >= 10


def test_a_least_length_changes_exactly_the_texts_that_ended_before_it(plain: Told) -> None:
    least = CASES["min_new_tokens"]["min_new_tokens"]
    short = [len(without) < least for _, without in pairs("min_new_tokens", plain)]
    assert [a != b for a, b in pairs("min_new_tokens", plain)] == short
    assert sum(short) >= 3


def test_every_text_under_a_schema_is_in_its_language(drafted: Told) -> None:
    for answer in drafted.cases["json schema"]:
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        told = json.loads(answer["text"])
        assert list(told) == SCHEMA["required"]
        assert isinstance(told["name"], str)
        assert len(told["name"]) <= 12
        assert told["kind"] in SCHEMA["properties"]["kind"]["enum"]
        assert type(told["count"]) is int
        assert 0 <= told["count"] <= 99
        assert isinstance(told["known"], bool)


@pytest.mark.parametrize("name", ["logprobs", "logprobs at a temperature"])
def test_log_probabilities_are_those_of_plain_sglang(name: str, drafted: Told, plain: Told) -> None:
    assert ids(drafted.cases[name]) == ids(plain.cases[name])
    assert_log_probabilities_equal(drafted.cases[name], plain.cases[name], within=1e-4)
    assert_drafted(drafted.cases[name])


def test_a_text_ends_at_the_contexts_limit_where_plain_sglang_ends_it(drafted: Told, plain: Told) -> None:
    name = "context limit"
    assert ids(drafted.cases[name]) == ids(plain.cases[name])
    assert endings(drafted.cases[name]) == endings(plain.cases[name])
    assert all(CONTEXT - 9 <= sum(lengths) <= CONTEXT for lengths in positions(plain.cases[name]))
    assert drafted.cases[name][-1]["meta_info"]["spec_num_correct_drafts"] > 0


def test_the_server_says_how_far_its_drafter_sees(drafted: Told) -> None:
    said = "dflash2: 2 of the drafter's 2 layers see a window of the last 96 positions"
    assert f"{said} of a context of {CONTEXT}, as its config says" in drafted.log


def positions(answers: list[Answer]) -> list[tuple[int, int]]:
    """Of each text: those of its prompt and those of its output."""
    return [(answer["meta_info"]["prompt_tokens"], len(answer["output_ids"])) for answer in answers]


def test_the_radix_cache_was_hit(drafted: Told) -> None:
    cached = [answer["meta_info"]["cached_tokens"] for answer in drafted.cases["presence"]]
    long = [count for count, prompt in zip(cached, half(), strict=True) if len(prompt) > 2]
    assert min(long) > 0
    assert max(long) < CONTEXT
