"""What a request may ask, and where a text may end: with drafts each engine answers as it does alone.

Where an engine does not honour an option exactly, its adapter refuses it by name: that is asserted too.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest

from dflash2_core import SamplingParams
from dflash2_core.engines import Generated, Server
from dflash2_core.errors import SamplingError
from tests.cross_engine.running import CONTEXT, Running
from tests.cross_engine.texts import NUM_DRAFTS
from tests.engines.pair import NEW_TOKENS, thirty_prompts, written_plainly

GREEDY = SamplingParams(max_new_tokens=NEW_TOKENS)
FEW = 12


@pytest.fixture
def plain(engine: str, running: Running) -> Server:
    return running.server(engine, drafts=False)


@pytest.fixture
def drafted(engine: str, running: Running) -> Server:
    return running.server(engine, drafts=True)


@pytest.fixture
def drafts_were_kept(drafted: Server) -> Iterator[None]:
    """In the course of the test."""
    before = drafted.acceptance()
    yield
    meanwhile = drafted.acceptance().since(before)
    assert meanwhile.num_drafted >= meanwhile.num_accepted > 0


pytestmark = pytest.mark.usefixtures("drafts_were_kept")


def ids(answers: list[Generated]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def prompts(count: int) -> list[list[int]]:
    """Of every domain some."""
    return thirty_prompts()[:: len(thirty_prompts()) // count][:count]


def both(plain: Server, drafted: Server, asked: SamplingParams, count: int = FEW) -> list[Generated]:
    """The answers with drafts, found to be those without; SamplingError if either refuses."""
    expected, found = (server.generate_ids(prompts(count), asked) for server in (plain, drafted))
    assert ids(found) == ids(expected)
    assert [answer.finish_reason for answer in found] == [answer.finish_reason for answer in expected]
    return found


def test_budgets_that_end_at_every_place_of_two_blocks_are_met_exactly(drafted: Server) -> None:
    budgets = range(1, 2 * (NUM_DRAFTS + 1) + 1)
    asked = [replace(GREEDY, max_new_tokens=budget) for budget in budgets]
    found = drafted.generate_ids([thirty_prompts()[1]] * len(budgets), asked)
    whole = written_plainly()[1].token_ids
    assert ids(found) == [whole[:budget] for budget in budgets]
    assert {answer.finish_reason for answer in found} == {"length"}
    assert all(answer.num_accepted <= answer.num_drafted for answer in found)


def test_a_text_ends_with_the_id_that_ends_it_and_nothing_follows(drafted: Server) -> None:
    by_core = [(prompt, text) for prompt, text in zip(thirty_prompts(), written_plainly(), strict=True)]
    ending = [(prompt, text) for prompt, text in by_core if text.finish_reason == "stop"]
    assert len(ending) >= 3
    found = drafted.generate_ids([prompt for prompt, _ in ending], GREEDY)
    assert ids(found) == [text.token_ids for _, text in ending]
    assert {answer.finish_reason for answer in found} == {"stop"}


@pytest.mark.parametrize("stop", ["\n", "self", "the", "e "])
def test_a_stop_string_cuts_the_text_where_it_is_complete(stop: str, plain: Server, drafted: Server) -> None:
    asked = replace(GREEDY, stop=(stop,))
    expected, found = (server.generate_ids(prompts(FEW), asked) for server in (plain, drafted))
    assert [answer.text for answer in found] == [answer.text for answer in expected]
    assert all(stop not in answer.text for answer in found)
    assert [answer.finish_reason for answer in found] == [answer.finish_reason for answer in expected]
    assert any(answer.finish_reason == "stop" for answer in found)


ONE_ID_LEFT = {
    "top_k": SamplingParams(temperature=1.0, top_k=1, max_new_tokens=NEW_TOKENS),
    "top_p": SamplingParams(temperature=1.0, top_p=1e-4, max_new_tokens=NEW_TOKENS),
    "min_p": SamplingParams(temperature=1.0, min_p=1.0, max_new_tokens=NEW_TOKENS),
}
REFUSED = {
    ("vllm", "min_p"),
    ("vllm", "logit_bias"),
    ("sglang", "repetition_penalty"),
    ("llama-cpp", "presence_penalty"),
    ("llama-cpp", "frequency_penalty"),
}
"""By the adapter, since the engine would not honour it exactly."""


@pytest.mark.parametrize("option", ONE_ID_LEFT)
def test_a_filter_that_leaves_one_id_is_greedy(option: str, engine: str, drafted: Server) -> None:
    if (engine, option) in REFUSED:
        with pytest.raises(SamplingError, match=option):
            drafted.generate_ids(prompts(1), ONE_ID_LEFT[option])
        drafted.generate_ids(prompts(1), GREEDY)
        return
    by_core = {tuple(prompt): text.token_ids for prompt, text in zip(thirty_prompts(), written_plainly(), strict=True)}
    asked = prompts(FEW)
    assert ids(drafted.generate_ids(asked, ONE_ID_LEFT[option])) == [by_core[tuple(prompt)] for prompt in asked]


REWRITING = {
    "repetition_penalty": replace(GREEDY, repetition_penalty=1.3),
    "presence_penalty": replace(GREEDY, presence_penalty=0.8),
    "frequency_penalty": replace(GREEDY, frequency_penalty=0.5),
    "logit_bias": replace(GREEDY, logit_bias={10: 3.0, 300: -2.0}),
}


@pytest.mark.parametrize("option", REWRITING)
def test_a_history_that_grows_inside_the_block_is_the_one_that_penalties_see(
    option: str, engine: str, plain: Server, drafted: Server
) -> None:
    if (engine, option) in REFUSED:
        with pytest.raises(SamplingError, match=option):
            drafted.generate_ids(prompts(1), REWRITING[option])
        drafted.generate_ids(prompts(1), GREEDY)
        return
    found = both(plain, drafted, REWRITING[option])
    assert ids(found) != ids(plain.generate_ids(prompts(FEW), GREEDY))


SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=NEW_TOKENS)


def test_a_seed_gives_the_same_text_alone_and_in_company(engine: str, drafted: Server) -> None:
    seeded = replace(SAMPLED, seed=7)
    if not drafted.takes_seeds:
        with pytest.raises(SamplingError, match="seed"):
            drafted.generate_ids(prompts(1), seeded)
        drafted.generate_ids(prompts(1), GREEDY)
        return
    asked = prompts(4)
    [alone] = drafted.generate_ids(asked[:1], seeded)
    together = drafted.generate_ids(asked, [seeded, SAMPLED, GREEDY, SAMPLED])
    again = drafted.generate_ids(asked[:1] * 2, [seeded, replace(seeded, seed=8)])
    assert together[0].token_ids == again[0].token_ids == alone.token_ids
    assert again[1].token_ids != alone.token_ids


def test_a_greedy_row_beside_sampled_ones_is_what_it_is_alone(drafted: Server) -> None:
    asked = prompts(FEW)
    mixed = drafted.generate_ids(asked, [GREEDY if i % 2 else SAMPLED for i in range(FEW)])
    alone = [drafted.generate_ids([prompt], GREEDY)[0] for prompt in asked[1::2]]
    assert ids(mixed[1::2]) == ids(alone)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 16])
def test_rows_of_different_lengths_and_budgets_are_what_they_are_alone(rows: int, drafted: Server) -> None:
    asked = thirty_prompts()[:rows]
    budgets = [NEW_TOKENS - 5 * (i % 7) for i in range(rows)]
    found = drafted.generate_ids(asked, [replace(GREEDY, max_new_tokens=budget) for budget in budgets])
    assert ids(found) == [text.token_ids[:budget] for text, budget in zip(written_plainly(), budgets, strict=False)]


def test_a_prompt_that_is_asked_again_comes_from_the_cache_and_keeps_as_many_drafts(drafted: Server) -> None:
    prompt = [id for i in (21, 23, 24) for id in thirty_prompts()[i]]  # vLLM's blocks for a CPU have 128 positions
    cold, warm = (drafted.generate_ids([prompt], GREEDY)[0] for _ in range(2))
    assert cold.num_cached < warm.num_cached
    assert warm.token_ids == cold.token_ids
    assert (warm.num_drafted, warm.num_accepted) == (cold.num_drafted, cold.num_accepted)


def test_a_text_that_runs_into_the_contexts_end_is_plain_decodings_up_to_it(plain: Server, drafted: Server) -> None:
    before = [id for text in thirty_prompts() for id in text]
    long = [[*before, *prompt][-(CONTEXT - 40) :] for prompt in thirty_prompts()[:4]]
    budget = CONTEXT - len(long[0]) - 1
    asked = [*[replace(GREEDY, max_new_tokens=budget)] * len(long), GREEDY]
    expected, found = (server.generate_ids([*long, thirty_prompts()[0]], asked) for server in (plain, drafted))
    assert ids(found) == ids(expected)
    assert max(len(answer.token_ids) for answer in found[:-1]) >= budget - 1, "none came to the end"


def test_an_abort_leaves_the_next_request_as_it_was(drafted: Server) -> None:
    before = drafted.generate_ids(prompts(2), GREEDY)
    for prompt in thirty_prompts()[:6]:
        _hang_up_on(drafted, prompt)
    assert ids(drafted.generate_ids(prompts(2), GREEDY)) == ids(before)


def _hang_up_on(server: Server, prompt: list[int]) -> None:
    """Asks for a stream, reads its beginning, and closes the connection."""
    place = urlsplit(server.base_url)
    body = {"model": _model(server), "prompt": prompt, "max_tokens": 200, "temperature": 0, "stream": True}
    connection = HTTPConnection(place.netloc, timeout=180)
    connection.request("POST", f"{place.path}/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().read(20)
    connection.close()


def _model(server: Any) -> str:
    name: str = server.ask("/v1/models")["data"][0]["id"]
    return name


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer"},
        "likes": {"enum": ["tea", "maths"]},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


def test_a_schema_is_kept_inside_blocks_as_it_is_without_them(plain: Any, drafted: Any) -> None:
    def written(server: Any, question: str) -> tuple[str, str]:
        body = {
            "model": _model(server),
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 80,
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        }
        choice = server.ask("/v1/chat/completions", body)["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]

    drafted.generate_ids(prompts(1), GREEDY)  # SGLang's own API does not tell its drafts
    questions = ["Who are you?", "Describe a teacher.", "What is 17 + 25?"]
    found = [written(drafted, question) for question in questions]
    assert found == [written(plain, question) for question in questions]
    whole = [text for text, reason in found if reason == "stop"]
    assert whole
    for text in whole:
        assert json.loads(text).keys() == PERSON["properties"].keys()


def test_logprobs_are_those_of_plain_decoding(engine: str, plain: Any, drafted: Any) -> None:
    drafted.generate_ids(prompts(1), GREEDY)
    if engine == "llama-cpp":
        with pytest.raises(SamplingError, match="logprobs is not honoured by the engine llama-cpp"):
            drafted.generate_ids(prompts(1), replace(GREEDY, logprobs=3))
        return
    for prompt in prompts(3):
        body = {"model": _model(plain), "prompt": prompt, "max_tokens": 40, "temperature": 0, "logprobs": 3}
        expected, found = (server.ask("/v1/completions", body)["choices"][0]["logprobs"] for server in (plain, drafted))
        assert found["tokens"] == expected["tokens"]
        assert found["token_logprobs"] == pytest.approx(expected["token_logprobs"], abs=1e-4)
        for ours, theirs in zip(found["top_logprobs"], expected["top_logprobs"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)


def test_the_counters_are_the_sums_of_what_the_requests_were_told(drafted: Server) -> None:
    before = drafted.acceptance()
    found = drafted.generate_ids(thirty_prompts()[:8], GREEDY)
    counted = drafted.acceptance().since(before)
    assert counted.num_accepted == sum(answer.num_accepted for answer in found) == sum(counted.accepted_per_position)
    assert counted.num_drafted == sum(answer.num_drafted for answer in found)
    assert len(counted.accepted_per_position) == NUM_DRAFTS
    assert all(earlier >= later for earlier, later in pairwise(counted.accepted_per_position))
