"""A target whose logits break in the midst of a text: what was accepted before stands and is counted, nothing after it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash2_core import Drafter, TransformersEngine
from dflash2_core.errors import Dflash2Error, SamplingError
from dflash2_core.sampling import SamplingParams
from dflash2_core.transformers_engine import Target, judge
from dflash2_core.transformers_engine.requests import Request
from tests.core.toys import oracle, toy_target
from tests.core.transformers_engine.conftest import complete, random_prompt

FITS = {"num_target_layers": 2, "target_layer_ids": (0,)}
PROMPT = random_prompt(9, seed=1)
WAYS = {"greedy": {}, "sampled": {"temperature": 1e-4, "seed": 3}}  # so cold that the greedy text is what is drawn


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(num_hidden_layers=2)


@pytest.fixture(scope="module")
def text(target: Target) -> list[int]:
    return complete(TransformersEngine(target), PROMPT, max_new_tokens=20).token_ids


@contextmanager
def broken_from(target: Target, position: int) -> Iterator[None]:
    """The logits that would choose the id at `position`, or at a later one, are NaN."""

    def breaks(module: object, args: object, asked: dict[str, Any], output: Any) -> None:
        judged = asked["position_ids"][0, -output.logits.shape[1] :] + 1
        output.logits[:, judged >= position] = torch.nan

    hook = target.model.register_forward_hook(breaks, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def until_it_breaks(target: Target, drafter: Drafter | None, options: dict[str, Any]) -> Request:
    engine = TransformersEngine(target, drafter)
    scheduler = engine.scheduler(1)
    request = engine.request(PROMPT, SamplingParams(max_new_tokens=20, ignore_eos=True, **options))
    scheduler.submit([request])
    while not scheduler.is_idle:
        scheduler.step()
    return request


def assert_counted_up_to_the_break(target: Target, text: list[int], way: str, at: int) -> None:
    """The id `at` of the text cannot be chosen; the first block holds the ids 1 to 8, seven of them drafts."""
    with broken_from(target, len(PROMPT) + at):
        request = until_it_breaks(target, oracle(PROMPT, text, **FITS), WAYS[way])
    stats = request.stats
    assert request.output == text[:at]
    assert isinstance(request.error, Dflash2Error)
    assert not stats.skipped
    cycles = 1 + (at > 8)
    first, second = min(at - 1, 7), max(0, at - 9)
    assert (stats.num_cycles, stats.num_drafted) == (cycles, 7 * cycles)
    assert stats.num_accepted == first + second
    assert stats.num_committed == at - 1
    assert stats.num_cut == 1
    assert stats.accepted_per_position == [(i < first) + (i < second) for i in range(7)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [1, 2, 5, 8, 9, 12])
def test_drafts_accepted_before_the_break_are_counted_and_committed(at: int, way: str, target: Target, text: list[int]) -> None:
    assert_counted_up_to_the_break(target, text, way, at)


@pytest.mark.parametrize("way", WAYS)
def test_a_break_without_drafts_counts_the_pass_as_what_it_was(way: str, target: Target) -> None:
    with broken_from(target, len(PROMPT) + 3):
        request = until_it_breaks(target, None, WAYS[way])
    assert len(request.output) == 3
    assert isinstance(request.error, Dflash2Error)
    assert request.stats.skipped == {"no drafter": 3}


def test_a_cycle_that_an_option_ends_is_no_fault_of_the_drafters(target: Target, text: list[int]) -> None:
    """Its error says why; the drafts were made and verified as far as that went."""

    def fails(history: Tensor, logits: Tensor) -> Tensor:
        if len(history) > len(PROMPT):
            raise SamplingError("no more")
        return logits

    request = until_it_breaks(target, oracle(PROMPT, text, **FITS), {"logits_processor": fails})
    assert (request.output, str(request.error)) == (text[:1], "no more")
    assert not request.stats.skipped
    assert (request.stats.num_cycles, request.stats.num_drafted, request.stats.num_accepted) == (1, 7, 0)


def one_accepted_less(outcome: judge.Outcome) -> judge.Outcome:
    """As if the last id were always the target's own."""
    return replace(outcome, accepted=max(0, len(outcome.ids) - 1))


def nothing_drafted(outcome: judge.Outcome) -> judge.Outcome:
    return outcome if outcome.error is None else replace(outcome, drafted=0)


@pytest.mark.parametrize("fault", [one_accepted_less, nothing_drafted])
def test_counts_that_are_wrong_where_the_logits_break_are_caught(
    fault: Callable[[judge.Outcome], judge.Outcome], target: Target, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = judge.judge
    monkeypatch.setattr(
        "dflash2_core.transformers_engine.batch.judge", lambda *asked: [fault(outcome) for outcome in right(*asked)]
    )
    with pytest.raises(AssertionError):
        assert_counted_up_to_the_break(target, text, "greedy", 5)
