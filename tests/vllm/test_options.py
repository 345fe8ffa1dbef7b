"""Options that end a text, look at it or bend it: the same with drafts as without."""

import json
import math
from typing import Any

import pytest

from tests.vllm.engines import Ran, VllmProcess

SCHEMA = {
    "type": "object",
    "properties": {"even": {"type": "boolean"}, "sign": {"enum": ["plus", "minus"]}},
    "required": ["even", "sign"],
    "additionalProperties": False,
}
CASES: dict[str, dict[str, Any]] = {
    "a stop string": {"stop": ["\n\n", "th"]},
    "a stop string kept": {"stop": ["e"], "include_stop_str_in_output": True},
    "a stop id": {"stop_token_ids": [13, 40, 220]},
    "past the end": {"ignore_eos": True},
    "at least so many": {"min_tokens": 30},
    "a short budget": {"max_tokens": 5},
    "repetition": {"repetition_penalty": 1.3},
    "presence and frequency": {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    "a schema": {"json_schema": SCHEMA, "max_tokens": 40},
    "some ids only": {"allowed_token_ids": list(range(3, 1024, 2))},
}


@pytest.mark.parametrize("case", CASES)
def test_an_option_does_what_it_does_without_drafts(
    case: str, plain: VllmProcess, drafted: VllmProcess, prompts: list[list[int]]
) -> None:
    options = {"temperature": 0, "max_tokens": 48, **CASES[case]}
    with_drafts, without = (engine.generate(prompts[1:14], **options) for engine in (drafted, plain))
    assert told(with_drafts) == told(without)
    assert with_drafts.draft_tokens > 0
    assert with_drafts.accepted_tokens > 0


def told(ran: Ran) -> list[tuple[list[int], str, str]]:
    return [
        (choice["token_ids"], choice["text"], choice["finish_reason"])
        for output in ran.outputs
        if output is not None
        for choice in output["choices"]
    ]


def test_a_schema_gives_json_of_that_kind(drafted: VllmProcess, prompts: list[list[int]]) -> None:
    ran = drafted.generate(prompts[20:26], temperature=0, max_tokens=40, json_schema=SCHEMA)
    for ids, text, reason in told(ran):
        assert reason == "stop", (ids, text)
        assert set(json.loads(text)) == {"even", "sign"}
    assert ran.accepted_tokens > 0


def test_logprobs_are_those_without_drafts(plain: VllmProcess, drafted: VllmProcess, prompts: list[list[int]]) -> None:
    both = [engine.generate(prompts[:8], temperature=0, max_tokens=32, logprobs=3) for engine in (drafted, plain)]
    assert both[0].accepted_tokens > 0
    assert both[0].ids == both[1].ids
    places = [[output["choices"][0]["logprobs"] for output in ran.outputs if output] for ran in both]
    for ours, theirs in zip(*places, strict=True):
        assert len(ours) == len(theirs) > 0
        for found, expected in zip(ours, theirs, strict=True):
            assert found == pytest.approx(expected, abs=1e-4)
            assert all(math.isfinite(value) for value in found.values())


def test_several_completions_of_a_prompt_are_each_the_greedy_one(
    plain: VllmProcess, drafted: VllmProcess, prompts: list[list[int]]
) -> None:
    options = {"max_tokens": 24, "temperature": 1.0, "top_k": 1, "n": 3}
    ran = drafted.generate(prompts[3:9], **options)
    assert told(ran) == told(plain.generate(prompts[3:9], **options))
    assert [len(output["choices"]) for output in ran.outputs if output] == [3] * 6
    assert ran.accepted_tokens > 0
