"""Above temperature 0 every token is the target's own, held against its float32 distribution by the core."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from dflash2_core import SamplingParams
from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.conformance import Written, check_law
from dflash2_core.engines import Generated
from tests.engines.pair import NEW_TOKENS, target
from tests.llama_cpp.conftest import Serve

LEAST = 20_000
SETTINGS = (SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_p=0.9))
SURE, UNSURE = 4, 2
"""Completions of a prompt: of arithmetic, where drafts of the best path are often what is sampled too, and of the rest."""

Sampled = list[tuple[Written, Generated]]


@pytest.fixture(scope="module")
def sampled(serve: Serve, prompts: list[list[int]]) -> Sampled:
    tokenizer = Tokenizer.from_file(str(tiny_pair().target / "tokenizer.json"))
    sums = [tokenizer.encode(prompt["text"]).ids for prompt in held_out_prompts() if prompt["domain"] == "arithmetic"]
    many = [(prompt, SURE) for prompt in sums] + [(prompt, UNSURE) for prompt in prompts[:20]]
    asked = [
        (prompt, replace(setting, seed=1000 * i + k, max_new_tokens=NEW_TOKENS))
        for setting in SETTINGS
        for i, (prompt, completions) in enumerate(many)
        for k in range(completions)
    ]
    answers = serve("f32", 4).generate_ids(*zip(*asked, strict=True))
    return [
        (Written(prompt, answer.token_ids, params), answer) for (prompt, params), answer in zip(asked, answers, strict=True)
    ]


def test_every_token_has_the_targets_own_law(sampled: Sampled) -> None:
    report = check_law(target(), [text for text, _ in sampled])
    assert report.num_tokens >= LEAST
    assert report.lossless, report
    assert report.smallest_tempering < 1.05


def test_drafts_were_kept_in_that_run_so_that_they_are_what_was_tested(sampled: Sampled) -> None:
    tokens = sum(len(answer.token_ids) for _, answer in sampled)
    accepted = sum(answer.num_accepted for _, answer in sampled)
    assert tokens / (tokens - accepted) > 1.8


def test_the_same_texts_are_not_those_of_a_temperature_a_twentieth_off(sampled: Sampled) -> None:
    asked_otherwise = [
        replace(text, params=replace(text.params, temperature=text.params.temperature * 1.05)) for text, _ in sampled
    ]
    assert not check_law(target(), asked_otherwise).lossless
