"""What plain SGLang and SGLang with drafts are asked alike, by name, and what is read from the answers."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dflash2_core import SamplingParams
from dflash2_core.conformance import Written
from dflash2_sglang.metrics import acceptance
from dflash2_sglang.server import SglangServer
from tests.engines.pair import NEW_TOKENS, thirty_prompts

Answer = dict[str, Any]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["function", "sentence", "sum"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "known": {"type": "boolean"},
    },
    "required": ["name", "kind", "count", "known"],
    "additionalProperties": False,
}
"""A language whose texts all come to an end within `NEW_TOKENS`."""
CASES: Mapping[str, dict[str, Any]] = {
    # name -> sampling parameters, all of them greedy
    "top_k 1 at temperature 1": {"temperature": 1.0, "top_k": 1},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.6},
    "presence and frequency": {"presence_penalty": 0.4, "frequency_penalty": -0.2},
    "repetition": {"repetition_penalty": 1.3},
    "min_new_tokens": {"min_new_tokens": 40},
    "bias": {"logit_bias": {"10": 8.0, "203": -8.0, "77": 5.0}},
    "stop strings": {"stop": ["\n\n", "return"]},
    "stop ids": {"stop_token_ids": [10, 300]},
    "json schema": {"json_schema": json.dumps(SCHEMA)},
}
TOGETHER = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.2, "min_new_tokens": 20}
"""All penalties at once, for which plain SGLang has no order (UPSTREAM.md): see `test_penalties.py`."""
SAMPLED: Mapping[str, dict[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "temperature 1, top-k 20": {"temperature": 1.0, "top_k": 20},
    "temperature 1.2, min-p 0.1": {"temperature": 1.2, "min_p": 0.1},
}
TIMES = {"temperature 1": 6, "temperature 0.7, top-p 0.9": 5, "temperature 1, top-k 20": 2, "temperature 1.2, min-p 0.1": 3}
"""How often the thirty prompts are asked under each law, 1,920 tokens a time."""
CONTEXT = 2048
LOGPROBS = {"return_logprob": True, "top_logprobs_num": 3, "token_ids_logprob": [5, 9]}


def ask(server: SglangServer, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any], **more: Any) -> list[Answer]:
    """All at once, greedily unless told otherwise."""
    asked = {"sampling_params": {"max_new_tokens": NEW_TOKENS, "temperature": 0, **sampling}, **more}
    with ThreadPoolExecutor(len(prompts)) as threads:
        return list(threads.map(lambda prompt: server.generate({"input_ids": list(prompt), **asked}), prompts))


def ask_cases(server: SglangServer) -> dict[str, list[Answer]]:
    """Thirty prompts greedily, half of them in each other case, and log-probabilities."""
    answers = {name: ask(server, half(), sampling) for name, sampling in CASES.items()}
    answers["greedy"] = ask(server, thirty_prompts(), {})
    answers["penalties together"] = ask(server, thirty_prompts(), TOGETHER)
    answers["logprobs"] = ask(server, half(), {}, **LOGPROBS)
    answers["logprobs at a temperature"] = ask(server, half(), {"temperature": 0.7, "top_k": 1}, **LOGPROBS)
    return answers


def half() -> list[list[int]]:
    """Every second prompt."""
    return thirty_prompts()[::2]


def ask_at_the_limit(server: SglangServer) -> dict[str, list[Answer]]:
    """Texts that end where the context's 2,048 positions do: blocks of drafts reach beyond."""
    text = 2 * [token for prompt in thirty_prompts() for token in prompt]
    found = []
    for room in (24, 31, 40):
        found += ask(server, [text[: CONTEXT - room]], {"ignore_eos": True, "max_new_tokens": room})
    return {"context limit": found}


def ask_sampled(server: SglangServer, times: Mapping[str, int] = TIMES) -> dict[str, list[Answer]]:
    """Thirty prompts so many times under each law, no text ending early."""
    answers = {}
    for name, often in times.items():
        prompts = [prompt for prompt in thirty_prompts() for _ in range(often)]
        answers[name] = ask(server, prompts, {**SAMPLED[name], "ignore_eos": True})
    return answers


def written(answers: Sequence[Answer], params: SamplingParams) -> list[Written]:
    """What `ask_sampled` got, for the law test."""
    times = len(answers) // len(thirty_prompts())
    prompts = [prompt for prompt in thirty_prompts() for _ in range(times)]
    return [Written(prompt, answer["output_ids"], params) for prompt, answer in zip(prompts, answers, strict=True)]


def ids(answers: Sequence[Answer]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def endings(answers: Sequence[Answer]) -> list[tuple[str, Any]]:
    """Text and the reason it ended for."""
    return [(answer["text"], answer["meta_info"]["finish_reason"]) for answer in answers]


def assert_drafted(answers: Sequence[Answer]) -> None:
    """In every text that is long enough for a draft, and kept in most."""
    long = [acceptance(answer["meta_info"]) for answer in answers if len(answer["output_ids"]) > 2]
    assert long
    assert all(stats.num_drafted > 0 for stats in long)
    assert sum(stats.num_accepted > 0 for stats in long) > len(long) / 2


def assert_plain(answers: Sequence[Answer]) -> None:
    assert all("spec_verify_ct" not in answer["meta_info"] for answer in answers)


def assert_log_probabilities_equal(ours: Sequence[Answer], plain: Sequence[Answer], within: float) -> None:
    """Of every token, its alternatives and the ids asked for: the same ids, values within `within`."""
    for name in ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"):
        for a, b in zip(ours, plain, strict=True):
            mine, theirs = (_entries(answer["meta_info"][name]) for answer in (a, b))
            assert len(mine) == len(theirs) > 0
            assert all(x[1] == y[1] and abs(x[0] - y[0]) < within for x, y in zip(mine, theirs, strict=True)), name
            assert all(value < 0 for value, *_ in mine)


def _entries(told: list[Any]) -> list[list[Any]]:
    """One [value, id, ...] an entry, whether the list has one or several a token."""
    return [entry for place in told for entry in ([place] if isinstance(place[0], float) else place)]
