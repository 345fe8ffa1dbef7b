"""What a request asks besides ids: penalties, stops, grammars, log-probabilities; greedy, compared with plain SGLang."""

import json

import pytest

from tests.sglang.asking import CASES, CONTEXT, Answer, assert_drafted, assert_log_probabilities_equal, endings, half, ids
from tests.sglang.conftest import Told

CHANGING = ("presence", "frequency", "presence and frequency", "repetition", "min_new_tokens", "bias", "json schema")
"""Cases whose option matters: some texts differ from those without it."""


@pytest.mark.parametrize("name", CASES)
def test_an_option_changes_a_drafted_text_as_it_changes_a_plain_one(name: str, drafted: Told, plain: Told) -> None:
    assert ids(drafted.cases[name]) == ids(plain.cases[name])
    assert endings(drafted.cases[name]) == endings(plain.cases[name])
    assert_drafted(drafted.cases[name])


@pytest.mark.parametrize("name", CHANGING)
def test_these_options_change_something(name: str, plain: Told) -> None:
    changed = [a != b for a, b in zip(ids(plain.cases[name]), ids(plain.cases["greedy"])[::2], strict=True)]
    assert sum(changed) > 1


def test_texts_under_a_schema_that_came_to_an_end_are_in_the_language(drafted: Told) -> None:
    whole = [
        answer["text"] for answer in drafted.cases["json schema"] if answer["meta_info"]["finish_reason"]["type"] == "stop"
    ]
    assert whole
    for text in whole:
        assert set(json.loads(text)) == {"name", "count"}


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


def positions(answers: list[Answer]) -> list[tuple[int, int]]:
    """Of each text: those of its prompt and those of its output."""
    return [(answer["meta_info"]["prompt_tokens"], len(answer["output_ids"])) for answer in answers]


def test_the_radix_cache_was_hit(drafted: Told) -> None:
    cached = [answer["meta_info"]["cached_tokens"] for answer in drafted.cases["presence"]]
    long = [count for count, prompt in zip(cached, half(), strict=True) if len(prompt) > 2]
    assert min(long) > 0
    assert max(long) < CONTEXT
