"""The law test calls the target's own samples lossless, and finds each small departure from them."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from dflash2_core import SamplingParams
from dflash2_core.conformance import LawReport, Written, check_law
from dflash2_core.conformance.law import STATISTICS, distributions
from dflash2_core.errors import SamplingError
from tests.engines.pair import target, thirty_prompts

PLAIN = SamplingParams(temperature=1.0)
Law = Callable[[Tensor], Tensor]
"""p [T, V] -> another law, same shape"""


@cache
def base_texts() -> tuple[Written, ...]:
    """Contexts only: every place's token is drawn anew by `drawn`."""
    generator = torch.Generator().manual_seed(3)
    vocabulary = target().vocab_size
    found = []
    for prompt in thirty_prompts():
        tail = torch.randint(vocabulary, (24,), generator=generator).tolist()
        found.append(Written(prompt, tail, PLAIN))
    return tuple(found)


def sampled(
    law: Law, *, params: SamplingParams = PLAIN, num_texts: int = 180, length: int = 40, seed: int = 0
) -> list[Written]:
    """Texts whose every token is drawn from `law` of the target's own p, token by token, many at once."""
    generator = torch.Generator().manual_seed(seed)
    width = 8
    contexts = [list(prompt[-width:]) for prompt in thirty_prompts() if len(prompt) >= width]
    texts = [list(contexts[i % len(contexts)]) for i in range(num_texts)]
    cache, ids = target().new_cache(num_texts), torch.tensor(texts)
    for _ in range(length):
        logits, _ = target().forward(ids, cache, rows=1)
        p = law((logits[:, 0].double() / params.temperature).softmax(-1))
        ids = p.multinomial(1, generator=generator)
        for text, token in zip(texts, ids[:, 0].tolist(), strict=True):
            text.append(token)
    return [Written(text[:width], text[width:], params) for text in texts]


def own(p: Tensor) -> Tensor:
    return p


def tempered(by: float) -> Law:
    return lambda p: (p.log() / by).softmax(-1)


def favouring(share: float) -> Law:
    """The most probable id in the place of any other one."""

    def law(p: Tensor) -> Tensor:
        favourite = torch.zeros_like(p).scatter_(1, p.argmax(1, keepdim=True), 1)
        return (1 - share) * p + share * favourite

    return law


def strayed(p: Tensor) -> Tensor:
    return 0.998 * p + 0.002 / p.shape[1]


def tilted(p: Tensor) -> Tensor:
    """Low ids half as likely again: no matter of temperature."""
    weights = torch.ones(p.shape[1], dtype=p.dtype)
    weights[: p.shape[1] // 2] = 1.5
    return p * weights / (p * weights).sum(1, keepdim=True)


@cache
def of_the_target_itself() -> LawReport:
    return check_law(target(), sampled(own))


def test_the_targets_own_samples_pass() -> None:
    report = of_the_target_itself()
    assert report.num_tokens == 180 * 40
    assert report.lossless, report
    assert min(report.p_values.values()) > 1e-3
    assert set(report.p_values) == set(STATISTICS)


@pytest.mark.parametrize(
    ("law", "finder"),
    [
        (tempered(1.07), "temper"),
        (tempered(1 / 1.07), "temper"),
        (favouring(0.15), "favour"),
        (strayed, "strays"),
        (tilted, "ids"),
    ],
    ids=["too warm", "too cool", "favourites kept too often", "strays", "low ids"],
)
def test_a_small_departure_is_found_by_the_statistic_made_for_it(law: Law, finder: str) -> None:
    report = check_law(target(), sampled(law))
    assert not report.lossless
    assert report.p_values[finder] < report.alpha, report


def test_what_it_says_it_would_have_found_it_finds() -> None:
    report = of_the_target_itself()
    for by in (report.smallest_tempering, 1 / report.smallest_tempering):
        assert not check_law(target(), sampled(tempered(by), seed=1)).lossless
    assert not check_law(target(), sampled(favouring(report.smallest_favour), seed=1)).lossless


def test_an_id_that_the_filters_forbid_is_enough() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9)
    texts = sampled(own, num_texts=30, length=10)
    report = check_law(target(), [Written(text.prompt, text.token_ids, params) for text in texts])
    assert report.impossible > 0
    assert not report.lossless
    assert "no probability at all" in str(report)


def test_the_places_distributions_are_those_of_decoding_token_by_token() -> None:
    params = SamplingParams(temperature=0.8, repetition_penalty=1.3, top_k=20)
    text = base_texts()[0]
    whole = distributions(target(), Written(text.prompt, text.token_ids, params))
    for i in (0, 1, 7, len(text.token_ids) - 1):
        one = Written([*text.prompt], [*text.token_ids[: i + 1]], params)
        torch.testing.assert_close(distributions(target(), one)[-1], whole[i], rtol=1e-4, atol=1e-6)
    assert whole.shape == (len(text.token_ids), target().vocab_size)


def test_a_law_is_held_against_the_temperature_that_was_asked() -> None:
    report = check_law(target(), sampled(own, params=SamplingParams(temperature=0.5)))
    assert report.lossless, report


@pytest.mark.parametrize(
    "texts", [[], [Written([1], [], PLAIN)], [Written([1], [2], SamplingParams())]], ids=["none", "empty", "greedy"]
)
def test_what_cannot_be_tested_is_refused(texts: list[Written]) -> None:
    with pytest.raises(SamplingError, match=r"nothing to test|has no law"):
        check_law(target(), texts)
