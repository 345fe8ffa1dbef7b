"""The target's cache: written in place, rolled back without a copy."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash2_core.transformers_engine import Target
from dflash2_core.transformers_engine.cache import RollbackCache, RollbackLayer
from tests.core.toys import toy_target
from tests.core.transformers_engine.conftest import random_prompt
from tests.core.transformers_engine.kinds import target_of

TARGETS = {"full attention": toy_target(), "sliding": target_of("Mistral, sliding")}


def run(target: Target, cache: RollbackCache, ids: Sequence[int]) -> Tensor:
    return target.forward(torch.tensor([list(ids)]), cache, rows=len(ids))[0]


def assert_forgotten(target: Target, kept: int, forgotten: int, block: int) -> None:
    """Positions rolled back leave no trace: what follows equals, bit for bit, a cache that never held them."""
    ids, after = random_prompt(kept, seed=kept), random_prompt(block, seed=99)
    cache, fresh = target.new_cache(), target.new_cache()
    run(target, cache, ids)
    run(target, cache, random_prompt(forgotten, seed=7))
    assert cache.length == kept + forgotten
    cache.rollback(kept)
    assert cache.length == kept
    run(target, fresh, ids)
    assert torch.equal(run(target, cache, after), run(target, fresh, after))
    assert cache.length == fresh.length == kept + block


@pytest.mark.parametrize("kind", TARGETS)
@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 8))
def test_a_rollback_leaves_no_trace(kind: str, kept: int, forgotten: int, block: int) -> None:
    assert_forgotten(TARGETS[kind], kept, forgotten, block)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("length", range(1, 21))
def test_a_rollback_into_the_middle_of_a_prefill_equals_a_shorter_prefill(kind: str, length: int) -> None:
    target = TARGETS[kind]
    ids, after = random_prompt(20, seed=3), random_prompt(3, seed=4)
    cache, fresh = target.new_cache(), target.new_cache()
    run(target, cache, ids)
    cache.rollback(length)
    run(target, fresh, ids[:length])
    # Prefills of different lengths round differently, and the toys' large weights magnify that; a fault is of the size of 1.
    torch.testing.assert_close(run(target, cache, after), run(target, fresh, after), atol=1e-3, rtol=1e-3)


def test_a_rollback_to_more_than_there_is_changes_nothing() -> None:
    cache = TARGETS["full attention"].new_cache()
    cache.rollback(5)
    assert cache.length == 0
    run(TARGETS["full attention"], cache, [1, 2, 3])
    cache.rollback(10)
    assert cache.length == 3


def test_a_rollback_that_keeps_one_position_too_many_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = RollbackCache.rollback
    monkeypatch.setattr(RollbackCache, "rollback", lambda self, length: rollback(self, length + 1))
    with pytest.raises(AssertionError):
        assert_forgotten(TARGETS["full attention"], 9, 4, 3)


def places(cache: RollbackCache) -> list[int]:
    return [states.data_ptr() for layer in cache.layers for states in (layer.keys, layer.values)]


def test_nothing_is_copied_while_there_is_room_and_the_room_doubles() -> None:
    target = TARGETS["full attention"]
    cache, moves = target.new_cache(), 0
    run(target, cache, random_prompt(10, seed=1))
    before = places(cache)
    while cache.length < 600:
        run(target, cache, random_prompt(8, seed=cache.length))
        cache.rollback(cache.length - 3)
        moves += places(cache) != before
        before = places(cache)
    assert moves == 2  # 256 -> 512 -> 1024
    assert cache.layers[0].keys.shape[-2] == 4 * RollbackLayer.FIRST_CAPACITY


@pytest.mark.parametrize("length", [255, 256, 257, 700])
def test_growth_keeps_what_was_held(length: int) -> None:
    target = TARGETS["full attention"]
    ids, after = random_prompt(length, seed=5), random_prompt(8, seed=6)
    grown, whole = target.new_cache(), target.new_cache()
    for start in range(0, length, 100):
        run(target, grown, ids[start : start + 100])
    run(target, whole, ids)
    torch.testing.assert_close(run(target, grown, after), run(target, whole, after), atol=1e-3, rtol=1e-3)


def test_memory_that_is_not_written_yet_is_never_read() -> None:
    """New buffers hold anything, NaN too."""
    target = TARGETS["full attention"]
    cache, fresh = target.new_cache(), target.new_cache()
    ids, after = random_prompt(9, seed=1), random_prompt(4, seed=2)
    for held in (cache, fresh):
        run(target, held, ids)
    for layer in cache.layers:
        with torch.inference_mode():
            layer.keys[..., cache.length :, :] = torch.nan
            layer.values[..., cache.length :, :] = torch.nan
    assert torch.equal(run(target, cache, after), run(target, fresh, after))
