"""Requests that share a pass: each row is what it would be alone, and nothing stays behind when it goes."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash2_core import Completion, Drafter, SamplingParams, TransformersEngine
from dflash2_core.drafter import DrafterContext
from dflash2_core.errors import CompatibilityError, SamplingError
from dflash2_core.transformers_engine import Target
from dflash2_core.transformers_engine import target as target_module
from dflash2_core.transformers_engine.batch import Batch
from dflash2_core.transformers_engine.cache import RollbackCache
from dflash2_core.transformers_engine.scheduler import Scheduler
from tests.core.toys import random_drafter, toy_target
from tests.core.transformers_engine.conftest import random_prompt
from tests.core.transformers_engine.kinds import KINDS, target_of

LENGTHS = (40, 1, 17, 3, 9, 25, 2, 12, 33, 5, 8, 21, 4, 15, 6, 11)
PROMPTS = [random_prompt(length, seed=length) for length in LENGTHS]


def three_layers(seed: int = 0) -> Target:
    return toy_target(seed, num_hidden_layers=3)


def drafter(**changes: object) -> Drafter:
    return random_drafter(**{"seed": 2, "num_target_layers": 3, "target_layer_ids": (1,)} | changes)


def options(count: int, **changes: Any) -> list[SamplingParams]:
    """Budgets that differ, so that rows leave at different times."""
    fixed = {"ignore_eos": True} | changes
    return [SamplingParams(max_new_tokens=8 + 5 * (i % 4), seed=i, **fixed) for i in range(count)]


def assert_same(ours: Sequence[Completion], alone: Sequence[Completion]) -> None:
    assert [c.token_ids for c in ours] == [c.token_ids for c in alone]
    assert [c.stats for c in ours] == [c.stats for c in alone]
    assert [c.finish_reason for c in ours] == [c.finish_reason for c in alone]


@pytest.fixture(scope="module")
def target() -> Target:
    target = three_layers()
    target.require_batches()  # looked at once, before a fault is put into it
    return target


@pytest.fixture(scope="module")
def alone(target: Target) -> list[Completion]:
    completions = TransformersEngine(target, drafter()).generate(PROMPTS, options(16))
    assert sum(c.stats.num_drafted for c in completions) > 500
    return completions


@pytest.mark.parametrize("rows", [2, 3, 4, 8, 16])
def test_each_row_is_what_it_is_alone_and_what_plain_decoding_writes(
    rows: int, target: Target, alone: list[Completion]
) -> None:
    together = TransformersEngine(target, drafter(), max_batch_size=rows).generate(PROMPTS, options(16))
    assert_same(together, alone)
    plain = TransformersEngine(target, max_batch_size=rows).generate(PROMPTS, options(16))
    assert [c.token_ids for c in plain] == [c.token_ids for c in alone]


@pytest.mark.parametrize("windows", [(5, 5), (None, 12), (None, None)])
def test_rows_of_every_kind_of_context(windows: tuple[int | None, ...], target: Target) -> None:
    own = drafter(layer_windows=windows)
    alone = TransformersEngine(target, own).generate(PROMPTS[:6], options(6))
    assert_same(TransformersEngine(target, own, max_batch_size=4).generate(PROMPTS[:6], options(6)), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_target(kind: str) -> None:
    target = target_of(kind, num_hidden_layers=3)
    own = drafter()
    solo = TransformersEngine(target, own).generate(PROMPTS[:6], options(6))
    assert_same(TransformersEngine(target, own, max_batch_size=4).generate(PROMPTS[:6], options(6)), solo)
    plain = TransformersEngine(target).generate(PROMPTS[:6], options(6))
    assert [c.token_ids for c in plain] == [c.token_ids for c in solo]


def test_a_padded_row_may_reach_past_the_contexts_end() -> None:
    """GPT-2 has a table of positions: one too far is an IndexError, if it is asked for."""
    target = target_of("GPT-2", num_hidden_layers=3, max_position_embeddings=64)
    prompts = [random_prompt(62, seed=1), random_prompt(5, seed=2)]
    solo = TransformersEngine(target, drafter()).generate(prompts, options(2))
    assert len(solo[0].token_ids) == 2
    assert_same(TransformersEngine(target, drafter(), max_batch_size=2).generate(prompts, options(2)), solo)


MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 1.1, "top_k": 5},
    {"temperature": 0.9, "top_p": 0.7, "repetition_penalty": 1.3},
    {"presence_penalty": 2.0},
    {"temperature": 0.7, "min_p": 0.1, "logit_bias": {3: 2.0}},
    {"temperature": 5.0, "top_k": 1},
    {"speculate": False},
]


def mixed(**changes: Any) -> list[SamplingParams]:
    return [
        SamplingParams(**{"max_new_tokens": 14 + i % 3, "seed": 100 + i, "ignore_eos": True} | each | changes)
        for i, each in enumerate(MIXED)
    ]


@pytest.mark.parametrize("rows", [3, 8])
def test_a_seeded_row_does_not_depend_on_its_neighbours(rows: int, target: Target) -> None:
    prompts = PROMPTS[: len(MIXED)]
    solo = TransformersEngine(target, drafter()).generate(prompts, mixed())
    engine = TransformersEngine(target, drafter(), max_batch_size=rows)
    assert_same(engine.generate(prompts, mixed()), solo)
    backwards = engine.generate(prompts[::-1], mixed()[::-1])[::-1]
    assert_same(backwards, solo)
    others = engine.generate(
        prompts, [SamplingParams(max_new_tokens=14, ignore_eos=True, temperature=1.0, seed=i) for i in range(8)]
    )
    assert others[1].token_ids != solo[1].token_ids


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_a_prompt_read_in_chunks_is_the_prompt(chunk: int, target: Target, alone: list[Completion]) -> None:
    passes: list[int] = []
    handle = target.model.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        engine = TransformersEngine(target, drafter(), max_batch_size=4, prefill_chunk=chunk)
        assert_same(engine.generate(PROMPTS[:6], options(6)), alone[:6])
    finally:
        handle.remove()
    assert max(passes) == min(max(chunk, 8), 40)


def run_out(engine: TransformersEngine, scheduler: Any) -> dict[Any, Completion]:
    done = {}
    while not scheduler.is_idle:
        for request, chunk in scheduler.step():
            if chunk.completion is not None:
                done[request] = chunk.completion
    return done


@pytest.mark.parametrize("when", range(1, 12, 2))
def test_an_aborted_request_leaves_the_others_as_they_are(when: int, target: Target, alone: list[Completion]) -> None:
    engine = TransformersEngine(target, drafter(), max_batch_size=3)
    for victim in range(6):
        requests = [engine.request(p, o) for p, o in zip(PROMPTS[:6], options(6), strict=True)]
        scheduler = engine.scheduler()
        scheduler.submit(requests)
        for _ in range(when):
            scheduler.step()
        was_over = requests[victim].is_over
        scheduler.abort(requests[victim])
        done = run_out(engine, scheduler)
        assert was_over or requests[victim] not in done
        for i in set(range(6)) - {victim}:
            if requests[i] in done:  # those that ended before the abort gave their completion then
                assert done[requests[i]].token_ids == alone[i].token_ids
        assert all(requests[i].output == alone[i].token_ids for i in set(range(6)) - {victim})


def test_a_row_used_again_is_as_new(target: Target, alone: list[Completion]) -> None:
    """One row: a long request, an abort in its midst, then every other request in turn."""
    engine = TransformersEngine(target, drafter())
    scheduler = engine.scheduler(1)
    long = engine.request(random_prompt(200, seed=3), SamplingParams(max_new_tokens=50, ignore_eos=True))
    scheduler.submit([long])
    for _ in range(4):
        scheduler.step()
    scheduler.abort(long)
    assert scheduler.is_idle
    requests = [engine.request(p, o) for p, o in zip(PROMPTS, options(16), strict=True)]
    scheduler.submit(requests)
    done = run_out(engine, scheduler)
    assert_same([done[request] for request in requests], alone)


def test_an_error_in_the_midst_of_a_prefill_leaves_nothing_behind(
    target: Target, alone: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TransformersEngine(target, drafter(), max_batch_size=3, prefill_chunk=4)
    scheduler = engine.scheduler()
    requests = [engine.request(p, o) for p, o in zip(PROMPTS[:4], options(4), strict=True)]
    scheduler.submit(requests[:2])
    scheduler.step(), scheduler.step(), scheduler.step()
    forward, calls = target.forward, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError("no room")
        return forward(*args, **kwargs)

    monkeypatch.setattr(target, "forward", failing)
    scheduler.submit([requests[2]])
    with pytest.raises(MemoryError):
        scheduler.step()
    monkeypatch.undo()
    again = engine.request(PROMPTS[2], options(4)[2])
    scheduler.submit([again, requests[3]])
    done = run_out(engine, scheduler)
    assert [done[r].token_ids for r in (requests[0], requests[1], again, requests[3])] == [c.token_ids for c in alone[:4]]


def test_an_error_in_a_pass_for_all_ends_all_and_leaves_nothing_behind(
    target: Target, alone: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TransformersEngine(target, drafter(), max_batch_size=3)
    scheduler = engine.scheduler()
    scheduler.submit([engine.request(p, o) for p, o in zip(PROMPTS[:3], options(3), strict=True)])
    for _ in range(5):
        scheduler.step()

    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(DrafterContext, "append", fails)
    with pytest.raises(MemoryError):
        scheduler.step()
    monkeypatch.undo()
    assert scheduler.is_idle
    requests = [engine.request(p, o) for p, o in zip(PROMPTS, options(16), strict=True)]
    scheduler.submit(requests)
    done = run_out(engine, scheduler)
    assert_same([done[request] for request in requests], alone)


def test_a_request_whose_options_fail_fails_alone(target: Target, alone: list[Completion]) -> None:
    def fails_later(history: Tensor, logits: Tensor) -> Tensor:
        return logits if len(history) < 25 else logits[:3]

    engine = TransformersEngine(target, drafter(), max_batch_size=4)
    params = options(4)
    params[2] = SamplingParams(max_new_tokens=30, ignore_eos=True, logits_processor=fails_later)
    requests = [engine.request(p, o) for p, o in zip(PROMPTS[:4], params, strict=True)]
    scheduler = engine.scheduler()
    scheduler.submit(requests)
    done = run_out(engine, scheduler)
    assert isinstance(requests[2].error, SamplingError)
    assert requests[2] not in done
    assert [done[requests[i]].token_ids for i in (0, 1, 3)] == [alone[i].token_ids for i in (0, 1, 3)]
    with pytest.raises(SamplingError, match="logits processor returned"):
        engine.generate(PROMPTS[:4], params)


def test_n_completions_are_those_of_the_seeds_that_follow(target: Target) -> None:
    engine = TransformersEngine(target, drafter(), max_batch_size=3)
    shared: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 12, "ignore_eos": True}
    several = engine.generate(PROMPTS[:2], SamplingParams(seed=7, n=3, **shared))
    assert len(several) == 6
    for i, prompt in enumerate(PROMPTS[:2]):
        for sample in range(3):
            (one,) = engine.generate([prompt], SamplingParams(seed=7 + sample, **shared))
            assert several[3 * i + sample].token_ids == one.token_ids
    assert len({tuple(c.token_ids) for c in several}) == 6
    with pytest.raises(SamplingError, match="n is 2"):
        engine.stream(PROMPTS[0], SamplingParams(n=2))


def test_a_request_may_decline_to_be_drafted_for(target: Target, alone: list[Completion]) -> None:
    (completion,) = TransformersEngine(target, drafter()).generate([PROMPTS[0]], options(1, speculate=False))
    assert completion.token_ids == alone[0].token_ids
    assert completion.stats.num_drafted == 0
    assert set(completion.stats.skipped) == {"turned off by the request"}


def test_attention_that_takes_no_mask_is_refused_for_batches_only() -> None:
    target = three_layers()
    target.model.config._attn_implementation = "flash_attention_2"
    target = Target(target.model)
    TransformersEngine(target)
    with pytest.raises(CompatibilityError, match="flash_attention_2"):
        TransformersEngine(target, max_batch_size=2)


def one_row_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = RollbackCache.rollback
    monkeypatch.setattr(RollbackCache, "rollback", lambda self, length, row=0: rollback(self, length + (row > 0), row))


def every_row_as_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = target_module.causal_masks

    def wrong(place: Any, *rest: Any) -> Any:
        return masks(type(place)(place.first_row, (max(place.starts),) * len(place.starts), place.length), *rest)

    monkeypatch.setattr(target_module, "causal_masks", wrong)


def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = target_module.causal_masks

    def wrong(place: Any, windows: Any, device: Any) -> Any:
        return {window: masks(place, [None], device)[None] for window in windows}

    monkeypatch.setattr(target_module, "causal_masks", wrong)


def a_row_left_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RollbackCache, "move", lambda self, source, row: None)


def a_context_left_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = DrafterContext.leave
    monkeypatch.setattr(DrafterContext, "leave", lambda self, row: leave(self, self.active - 1))


def a_row_not_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RollbackCache, "clear", lambda self, row: None)


@pytest.mark.parametrize(
    "mutant",
    [one_row_too_many, every_row_as_the_longest, a_row_left_where_it_was, a_context_left_where_it_was, a_row_not_begun_anew],
)
def test_mutants_of_the_rows_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], target: Target, alone: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        assert_same(TransformersEngine(target, drafter(), max_batch_size=4).generate(PROMPTS, options(16)), alone)


def test_a_window_that_batches_forget_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    no_window(monkeypatch)
    with pytest.raises(AssertionError):
        test_every_kind_of_target("Mistral, sliding")


def test_an_abort_that_leaves_the_request_in_flight_is_caught(
    target: Target, alone: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, "abort", lambda self, request: None)
    with pytest.raises(AssertionError):
        test_an_aborted_request_leaves_the_others_as_they_are(5, target, alone)


def test_a_prefill_that_fails_and_keeps_its_row_is_caught(
    target: Target, alone: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = Batch.leave

    def only_when_over(self: Batch, request: Any) -> None:
        if request.is_over:
            leave(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "leave", only_when_over)
        with pytest.raises(IndexError):  # it has no last token to go on from
            test_an_error_in_the_midst_of_a_prefill_leaves_nothing_behind(target, alone, monkeypatch)


def test_a_prompt_of_which_the_drafter_sees_the_last_chunk_alone_is_caught(
    target: Target, alone: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    append = DrafterContext.append

    def forgets(self: DrafterContext, taps: Tensor, counts: Sequence[int], *, first_row: int | None = None) -> None:
        if first_row is not None:  # a prompt's
            self.lengths[first_row] = 0
        append(self, taps, counts, first_row=first_row or 0)

    monkeypatch.setattr(DrafterContext, "append", forgets)
    test_a_prompt_read_in_chunks_is_the_prompt(1000, target, alone)
    with pytest.raises(AssertionError):
        test_a_prompt_read_in_chunks_is_the_prompt(7, target, alone)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_neighbour_whose_drafter_breaks_down_drafts_nothing_and_the_others_go_on(
    value: float, target: Target, alone: list[Completion]
) -> None:
    """The features of one row are spoilt from its prefill on."""
    engine = TransformersEngine(target, drafter(), max_batch_size=3)
    append = DrafterContext.append

    def spoilt(self: DrafterContext, taps: Tensor, counts: Sequence[int], *, first_row: int = 0) -> None:
        if first_row == 1:
            taps = torch.full_like(taps, value)
        append(self, taps, counts, first_row=first_row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DrafterContext, "append", spoilt)
        together = engine.generate(PROMPTS[:3], options(3))
    assert [c.token_ids for c in together] == [c.token_ids for c in alone[:3]]
    assert together[1].stats.num_drafted == 0
    assert together[1].stats.skipped == {
        "drafter output not finite": len(together[1].token_ids) - 2,
        "last token of the budget": 1,
    }
    assert together[0].stats == alone[0].stats
