"""What a seed means: the same ids whoever else is in the batch, whatever ran before, and when it is asked again."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dflash2_core import Completion, SamplingParams, TransformersEngine
from dflash2_core.sampling import Purpose, RandomStreams
from dflash2_core.transformers_engine import Target
from tests.core.toys import random_drafter, toy_target
from tests.core.transformers_engine.conftest import random_prompt
from tests.core.transformers_engine.test_batches import run_out

FITS = {"num_target_layers": 2, "target_layer_ids": (0,)}
PROMPT = random_prompt(9, seed=1)
OTHERS = [random_prompt(length, seed=length) for length in (3, 21, 12)]


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(num_hidden_layers=2)


def params(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_new_tokens=20, ignore_eos=True)


def engine_of(target: Target, rows: int) -> TransformersEngine:
    return TransformersEngine(target, random_drafter(seed=2, **FITS), max_batch_size=rows)


def alone(target: Target, seed: int) -> Completion:
    return engine_of(target, 1).generate([PROMPT], params(seed))[0]


def in_a_batch_of_four(target: Target) -> Completion:
    return engine_of(target, 4).generate([*OTHERS, PROMPT], [params(seed) for seed in (1, 2, 3, 7)])[3]


def after_17_steps_of_others(target: Target) -> Completion:
    engine = engine_of(target, 2)
    scheduler = engine.scheduler()
    scheduler.submit([engine.request(prompt, params(seed)) for seed, prompt in enumerate(OTHERS)])
    for _ in range(17):
        scheduler.step()
    request = engine.request(PROMPT, params(7))
    scheduler.submit([request])
    return run_out(engine, scheduler)[request]


def after_an_abort_of_the_same(target: Target) -> Completion:
    """There is no preemption: a request that gives way is aborted and asked again."""
    engine = engine_of(target, 2)
    scheduler = engine.scheduler()
    first, again = engine.request(PROMPT, params(7)), engine.request(PROMPT, params(7))
    scheduler.submit([engine.request(OTHERS[0], params(1)), first])
    for _ in range(6):
        scheduler.step()
    assert 1 < len(first.output) < 20
    scheduler.abort(first)
    scheduler.submit([again])
    return run_out(engine, scheduler)[again]


def assert_same_for_a_seed(target: Target) -> None:
    expected = alone(target, seed=7)
    assert expected.stats.num_drafted > 40
    for otherwise in (in_a_batch_of_four, after_17_steps_of_others, after_an_abort_of_the_same):
        completion = otherwise(target)
        assert completion.token_ids == expected.token_ids, otherwise.__name__
        assert completion.stats == expected.stats, otherwise.__name__
    assert alone(target, seed=8).token_ids != expected.token_ids


def test_a_seed_gives_the_same_ids_in_any_company_and_another_seed_others(target: Target) -> None:
    assert_same_for_a_seed(target)


class ByRow(RandomStreams):
    """Each row of the batch has a stream of its own, whoever sits there."""

    def __init__(self, seeds: list[int]) -> None:
        super().__init__(list(range(len(seeds))))


class ByStep(RandomStreams):
    """As a generator has it: each draw depends on how many came before."""

    counter: Iterator[int]

    def uniform(self, positions: Tensor, purpose: Purpose | str) -> Tensor:
        return super().uniform(torch.full_like(positions, next(self.counter)), purpose)


@pytest.mark.parametrize("streams", [ByRow, ByStep])
def test_draws_that_depend_on_the_row_or_on_what_ran_before_are_caught(
    streams: type[RandomStreams], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByStep, "counter", iter(range(10**6)), raising=False)
    for module in ("batch", "judge"):
        monkeypatch.setattr(f"dflash2_core.transformers_engine.{module}.RandomStreams", streams)
    with pytest.raises(AssertionError):
        assert_same_for_a_seed(target)
