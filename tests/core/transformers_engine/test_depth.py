"""How many drafts a cycle makes: the block of the checkpoint less its anchor, or what was asked; never another in silence."""

import warnings
from collections.abc import Callable

import pytest

from dflash2_core import Drafter, TransformersEngine
from dflash2_core.errors import CompatibilityError
from dflash2_core.transformers_engine import Target, engine
from tests.core.toys import random_drafter
from tests.core.transformers_engine.conftest import complete, random_prompt

PROMPT = random_prompt(9, seed=1)


def test_block_size_one_is_off_and_says_so(target: Target) -> None:
    with pytest.warns(UserWarning, match="drafting is off"):
        engine = TransformersEngine(target, random_drafter(), block_size=1)
    completion = complete(engine, PROMPT)
    assert completion.stats.num_drafted == 0
    assert completion.token_ids == complete(TransformersEngine(target), PROMPT).token_ids


@pytest.mark.parametrize("block_size", [9, 100])
def test_a_block_longer_than_the_checkpoints_is_refused_with_both_numbers(block_size: int, target: Target) -> None:
    with pytest.raises(CompatibilityError, match=rf"{block_size} .* 8 \(7 drafts\)"):
        TransformersEngine(target, random_drafter(), block_size=block_size)


@pytest.mark.parametrize("block_size", [0, -1])
def test_a_block_without_an_anchor_is_refused(block_size: int, target: Target) -> None:
    for drafter in (None, random_drafter()):
        with pytest.raises(CompatibilityError, match=f"block size {block_size}"):
            TransformersEngine(target, drafter, block_size=block_size)


@pytest.mark.parametrize(("block_size", "drafts"), [(None, 7), (8, 7), (5, 4), (2, 1)])
def test_a_block_of_b_rows_drafts_b_less_one(block_size: int | None, drafts: int, target: Target) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = TransformersEngine(target, random_drafter(), block_size=block_size)
    stats = complete(engine, PROMPT).stats
    assert engine.num_drafts == len(stats.drafted_per_position) == drafts


def a_constant(drafter: Drafter | None, block_size: int | None) -> int:
    """As an engine with a default of its own has it."""
    return 3 if block_size is None else drafts_per_cycle(drafter, block_size)


def drafts_for_rows(drafter: Drafter | None, block_size: int | None) -> int:
    """K taken for K + 1: the number of a block's rows for that of its drafts."""
    return drafts_per_cycle(drafter, block_size) - 1


def clamped_in_silence(drafter: Drafter | None, block_size: int | None) -> int:
    assert drafter is not None
    return min(block_size or drafter.config.block_size, drafter.config.block_size) - 1


drafts_per_cycle = engine._drafts_per_cycle
UNCHECKED: list[tuple[Callable[..., int], Callable[[Target], None]]] = [
    (a_constant, lambda target: test_a_block_of_b_rows_drafts_b_less_one(None, 7, target)),
    (drafts_for_rows, lambda target: test_a_block_of_b_rows_drafts_b_less_one(5, 4, target)),
    (clamped_in_silence, lambda target: test_a_block_longer_than_the_checkpoints_is_refused_with_both_numbers(9, target)),
    (clamped_in_silence, test_block_size_one_is_off_and_says_so),
]


@pytest.mark.parametrize(("fault", "check"), UNCHECKED)
def test_another_depth_than_the_one_asked_for_is_caught(
    fault: Callable[..., int], check: Callable[[Target], None], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_drafts_per_cycle", fault)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(target)
