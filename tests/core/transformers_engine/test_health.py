"""Is the drafter at work? What drafts badly, or not at all, is counted with its reason and told of once."""

import warnings
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dflash2_core import AcceptanceStats, Chunk, SamplingParams, TransformersEngine
from dflash2_core.drafter import DrafterContext
from dflash2_core.transformers_engine import LowAcceptanceWarning, Target
from dflash2_core.transformers_engine.batch import Batch
from tests.core.toys import always_wrong, oracle, random_drafter
from tests.core.transformers_engine.conftest import NEW, Trained, complete, random_prompt

PROMPT = random_prompt(9, seed=1)


@pytest.fixture
def few_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict after 12 cycles, so that a few short runs are enough."""
    monkeypatch.setattr(TransformersEngine, "CYCLES_BEFORE_WARNING", 12)


def warned(engine: TransformersEngine, runs: int, *, stream: bool = False) -> list[warnings.WarningMessage]:
    """What runs of 10 ids tell of low acceptance."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(runs):
            if stream:
                assert list(engine.stream(PROMPT, SamplingParams(max_new_tokens=10, ignore_eos=True)))
            else:
                complete(engine, PROMPT, max_new_tokens=10)
    return [warning for warning in seen if warning.category is LowAcceptanceWarning]


@pytest.mark.usefixtures("few_cycles")
@pytest.mark.parametrize("stream", [False, True])
def test_a_drafter_that_is_hardly_ever_right_is_told_of_once_with_the_usual_causes(stream: bool, target: Target) -> None:
    text = complete(TransformersEngine(target), PROMPT).token_ids
    engine = TransformersEngine(target, always_wrong(PROMPT, text))
    assert not warned(engine, 1, stream=stream), "8 cycles are too few to judge by"
    (warning,) = warned(engine, 4, stream=stream)
    for word in ("1.00 tokens per cycle", "another target", "chat template", "taps", "temperature"):
        assert word in str(warning.message)


@pytest.mark.usefixtures("few_cycles")
def test_a_drafter_whose_numbers_overflow_is_told_of_too(target: Target) -> None:
    drafter = random_drafter()
    drafter.norm.weight.fill_(torch.inf)
    (warning,) = warned(TransformersEngine(target, drafter), 4)
    assert "non-finite" in str(warning.message)


@pytest.mark.usefixtures("few_cycles")
def test_a_good_drafter_and_plain_decoding_are_not_told_of(target: Target) -> None:
    text = complete(TransformersEngine(target), PROMPT).token_ids
    assert not warned(TransformersEngine(target, oracle(PROMPT, text)), 8)
    assert not warned(TransformersEngine(target), 2)
    with pytest.warns(UserWarning, match="off"):
        off = TransformersEngine(target, random_drafter(), block_size=1)
    assert not warned(off, 2)


@pytest.mark.usefixtures("few_cycles")
def test_a_warning_that_never_comes_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransformersEngine, "_warn_of_low_acceptance", lambda self, stats: None)
    with pytest.raises(ValueError, match="unpack"):
        test_a_drafter_that_is_hardly_ever_right_is_told_of_once_with_the_usual_causes(False, target)


@pytest.mark.usefixtures("few_cycles")
def test_a_warning_made_an_error_costs_no_text(target: Target) -> None:
    text = complete(TransformersEngine(target), PROMPT).token_ids
    engine = TransformersEngine(target, always_wrong(PROMPT, text))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = engine.stream(PROMPT, SamplingParams(max_new_tokens=NEW, ignore_eos=True))
        chunks: list[Chunk] = []
        with pytest.raises(LowAcceptanceWarning):
            chunks.extend(stream)
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.token_ids == text


def assert_the_drafter_is_at_work(trained: Trained) -> None:
    """What a health report says of the trained pair: depth, drafts made, drafts accepted by what they were made from."""
    engine = TransformersEngine(trained.target, trained.drafter)
    stats = AcceptanceStats.total(complete(engine, prompt, max_new_tokens=24).stats for prompt in trained.prompts[120::60])
    assert engine.num_drafts == len(stats.drafted_per_position) == 7
    assert not set(stats.skipped) - {"last token of the budget"}
    assert stats.num_drafted > 60
    assert stats.mean_acceptance_length > 2


def test_the_trained_drafter_is_at_work(trained: Trained) -> None:
    assert_the_drafter_is_at_work(trained)


def features_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    append = DrafterContext.append

    def zeros(self: DrafterContext, taps: Tensor, counts: Sequence[int], *, first_row: int = 0) -> None:
        append(self, torch.zeros_like(taps), counts, first_row=first_row)

    monkeypatch.setattr(DrafterContext, "append", zeros)


def a_path_that_skips_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "_drafts_to_ask", lambda self, row, request, width: (0, "no reason"))


@pytest.mark.parametrize("fault", [features_of_nothing, a_path_that_skips_it])
def test_a_drafter_that_is_loaded_and_not_used_shows(fault: object, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(fault)
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        assert_the_drafter_is_at_work(trained)
