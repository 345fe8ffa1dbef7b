"""Where a context ends, the target's or the drafter's own: nothing is asked past it, and the text is that of plain decoding."""

from collections.abc import Callable

import pytest

from dflash2_core import Drafter, TransformersEngine
from dflash2_core.errors import SamplingError
from dflash2_core.transformers_engine import Target
from dflash2_core.transformers_engine.batch import Batch
from dflash2_core.transformers_engine.requests import Request
from tests.core.transformers_engine.conftest import complete, random_prompt
from tests.core.transformers_engine.kinds import target_of
from tests.core.transformers_engine.test_stopping import (
    B,
    always_wrong,
    assert_counts_are_of_what_was_committed,
    oracle,
    random_drafter,
    toy_model,
)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(toy_model())


LIMIT = 40


@pytest.fixture(scope="module")
def short_target() -> Target:
    return Target(toy_model(max_position_embeddings=LIMIT))


@pytest.mark.parametrize("room", range(1, 2 * B + 2, 3))
def test_a_text_ends_where_the_targets_context_does(room: int, short_target: Target) -> None:
    prompt = random_prompt(LIMIT - room, seed=room)
    expected = complete(TransformersEngine(Target(toy_model())), prompt, max_new_tokens=room).token_ids
    for drafter in (None, oracle(prompt, expected), always_wrong(prompt, expected), random_drafter(layer_windows=(5, 5))):
        completion = complete(TransformersEngine(short_target, drafter), prompt, max_new_tokens=100)
        assert completion.token_ids == expected
        assert completion.finish_reason == "length"
        assert_counts_are_of_what_was_committed(completion)
        assert drafter is None or room < 3 or completion.stats.num_drafted > 0


@pytest.mark.parametrize("length", [LIMIT, LIMIT + 1])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(length: int, short_target: Target) -> None:
    for drafter in (None, random_drafter()):
        engine = TransformersEngine(short_target, drafter)
        with pytest.raises(SamplingError, match=rf"{length} tokens .* {LIMIT}"):
            complete(engine, random_prompt(length, seed=1))
        with pytest.raises(SamplingError, match=rf"{length} tokens .* {LIMIT}"):
            engine.stream(random_prompt(length, seed=1))


class Watched(Drafter):
    """Notes the positions it drafts for."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter.config)
        self.load_state_dict(drafter.state_dict())
        self.requires_grad_(False)
        self.drafted: list[int] = []

    def propose(self, context, anchors, lengths, **options):  # type: ignore[no-untyped-def]
        self.drafted += [context.lengths[0] + k for k in range(lengths[0] + 1)]
        return super().propose(context, anchors, lengths, **options)


@pytest.mark.parametrize("length", [1, 5, 17, 18, 19, 20, 30])
@pytest.mark.parametrize("windows", [(None, None), (5, 5)])
def test_a_drafter_with_a_shorter_context_stops_drafting_there_and_the_text_goes_on(
    length: int, windows: tuple[int | None, ...], target: Target
) -> None:
    prompt = random_prompt(length, seed=length)
    text = complete(TransformersEngine(target), prompt).token_ids
    drafter = Watched(random_drafter(max_position_embeddings=20, layer_windows=windows))
    completion = complete(TransformersEngine(target, drafter), prompt)
    assert completion.token_ids == text
    assert completion.stats.skipped["past the drafter's context limit"] > 0
    assert max(drafter.drafted, default=0) <= 19
    assert (completion.stats.num_drafted > 0) is (length < 19)
    assert_counts_are_of_what_was_committed(completion)


def one_position_too_far(self: Batch, row: int, request: Request, width: int) -> tuple[int, str]:
    drafts, reason = drafts_to_ask(self, row, request, width)
    return (min(drafts + 1, width, request.remaining - 1) if drafts else 0), reason


def skipped_in_silence(self: Batch, row: int, request: Request, width: int) -> tuple[int, str]:
    return drafts_to_ask(self, row, request, width)[0], "last token of the budget"


drafts_to_ask = Batch._drafts_to_ask


@pytest.mark.parametrize("fault", [one_position_too_far, skipped_in_silence])
def test_drafts_past_the_drafters_own_positions_are_caught(
    fault: Callable[..., tuple[int, str]], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batch, "_drafts_to_ask", fault)
    with pytest.raises(AssertionError):
        test_a_drafter_with_a_shorter_context_stops_drafting_there_and_the_text_goes_on(5, (5, 5), target)


def test_a_budget_that_forgets_the_targets_context_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 has a table of positions: what is written past it is made up, if it does not fail."""
    short = target_of("GPT-2", num_hidden_layers=2, max_position_embeddings=LIMIT)
    prompt = random_prompt(LIMIT - 9, seed=1)
    assert len(complete(TransformersEngine(short, random_drafter()), prompt).token_ids) == 9
    monkeypatch.setattr(Target, "context_limit", None)
    with pytest.raises(IndexError):
        complete(TransformersEngine(short, random_drafter()), prompt)
