"""Rows that nobody uses: whatever they hold, no request sees it, and none that comes into them."""

from collections.abc import Callable

import pytest
import torch

from dflash2_core import Completion, Drafter, SamplingParams, TransformersEngine
from dflash2_core.transformers_engine import Target
from dflash2_core.transformers_engine.batch import Batch
from dflash2_core.transformers_engine.cache import RollbackCache
from tests.core.toys import random_drafter, toy_target
from tests.core.transformers_engine import test_hybrid as hybrid
from tests.core.transformers_engine.conftest import random_prompt
from tests.core.transformers_engine.test_batches import assert_same

PROMPTS = [random_prompt(1 + 7 * i % 25, seed=i) for i in range(17)]
TARGETS: dict[str, Callable[[], Target]] = {
    "keys and values": lambda: toy_target(num_hidden_layers=4),
    "a recurrent state too": lambda: hybrid.target_of("Qwen3.5"),
}


def drafter() -> Drafter:
    return random_drafter(seed=2, layer_windows=(12, 12), num_target_layers=4, target_layer_ids=(0, 1))


def params(count: int) -> list[SamplingParams]:
    return [SamplingParams(max_new_tokens=4 + i % 4, ignore_eos=True, temperature=i % 2 * 0.9, seed=i) for i in range(count)]


@torch.inference_mode()
def spoil_free_rows(batch: Batch) -> None:
    """Fill what no request holds with NaN, in the target's cache and in the drafter's context."""
    used = len(batch.requests)
    for states in batch._cache._states():
        states[used:] = torch.nan
    assert batch._context is not None
    if used < batch.max_rows:
        row = batch._context.join()
        batch._context.append(torch.full((1, 30, 2 * 16), torch.nan), [30], first_row=row)
        batch._context.leave(row)


def completions_beside_spoilt_rows(target: Target, count: int, rows: int) -> list[Completion]:
    engine = TransformersEngine(target, drafter(), max_batch_size=rows)
    scheduler = engine.scheduler()
    requests = [engine.request(p, o) for p, o in zip(PROMPTS[:count], params(count), strict=True)]
    scheduler.submit(requests)
    done = {}
    while not scheduler.is_idle:
        spoil_free_rows(scheduler._batch)
        for request, chunk in scheduler.step():
            assert request.error is None, request.error
            if chunk.completion is not None:
                done[request] = chunk.completion
    return [done[request] for request in requests]


def assert_unseen(target: Target, count: int, rows: int) -> None:
    alone = TransformersEngine(target, drafter()).generate(PROMPTS[:count], params(count))
    assert sum(c.stats.num_drafted for c in alone) > 4 * count
    assert_same(completions_beside_spoilt_rows(target, count, rows), alone)


@pytest.mark.parametrize(
    ("kind", "count", "rows"), [("keys and values", 3, 4), ("a recurrent state too", 3, 4), ("keys and values", 17, 24)]
)
def test_rows_that_nobody_uses_may_hold_anything(kind: str, count: int, rows: int) -> None:
    assert_unseen(TARGETS[kind](), count, rows)


@pytest.mark.parametrize("kind", TARGETS)
def test_a_row_that_begins_with_what_was_there_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RollbackCache, "clear", lambda self, row: self.rollback(0, row))
    with pytest.raises(AssertionError):
        assert_unseen(TARGETS[kind](), 3, 4)
