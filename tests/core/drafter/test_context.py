"""The drafter's keys and values: rows of different lengths, rings and growing buffers, rows that come and go."""

from collections.abc import Iterable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash2_core import Drafter
from dflash2_core.drafter import DrafterContext, layer, masks
from dflash2_core.drafter.context import ContextViews
from tests.core.drafter.conftest import Borrowed, Draft, borrowed
from tests.core.toys import random_drafter

RING, GROWING, MIXED = (5, 5), (None, None), (None, 5)
WIDTH = 3 * 16  # three taps of the toy target


def features(length: int, seed: int) -> Tensor:
    """What the target makes of `length` tokens: [length, WIDTH]"""
    return torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(seed))


def append(rows: DrafterContext, row: int, taps: Tensor, chunk: int | None = None) -> None:
    for part in taps.split(chunk or max(1, len(taps))):
        rows.append(part[None], [len(part)], first_row=row)


def context_of(drafter: Drafter, rows: Sequence[Tensor], max_rows: int | None = None) -> DrafterContext:
    opened = drafter.new_context(max_rows or len(rows))
    for taps in rows:
        append(opened, opened.join(), taps)
    return opened


def assert_same_drafts(batch: Draft, row: int, alone: Draft) -> None:
    length = int(alone.proposal.lengths[0])
    assert batch.tokens(row) == alone.tokens(0)
    torch.testing.assert_close(batch.hidden[row, :length], alone.hidden[0, :length], atol=1e-5, rtol=1e-5)


def assert_rows_draft_as_alone(drafter: Drafter, target: Borrowed, lengths: Sequence[int], asked: Sequence[int]) -> None:
    rows = [features(length, seed=i) for i, length in enumerate(lengths)]
    anchors = [3 * i % 37 for i in range(len(rows))]
    temperature, seeds = [i % 2 * 0.8 for i in range(len(rows))], list(range(100, 100 + len(rows)))
    batch = target.propose(drafter, context_of(drafter, rows), anchors, asked, temperature=temperature, seeds=seeds)
    assert batch.proposal.lengths.tolist() == list(asked)
    assert sum(asked) > 0, "nothing was drafted"
    for i, taps in enumerate(rows):
        if asked[i] == 0:
            continue
        alone = target.propose(
            drafter,
            context_of(drafter, [taps]),
            [anchors[i]],
            [asked[i]],
            temperature=[temperature[i]],
            seeds=[seeds[i]],
        )
        assert_same_drafts(batch, i, alone)
        assert batch.proposal.probs is not None
        assert alone.proposal.probs is not None
        torch.testing.assert_close(batch.proposal.probs[i, : asked[i]], alone.proposal.probs[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("windows", [RING, GROWING, MIXED])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 16])
def test_each_row_of_a_batch_drafts_what_it_drafts_alone(rows: int, windows: tuple[int | None, ...], target: Borrowed) -> None:
    drafter = random_drafter(layer_windows=windows)
    lengths = [(7 * i + rows) % 30 for i in range(rows)]
    assert_rows_draft_as_alone(drafter, target, lengths, [7] * rows)


@pytest.mark.parametrize("windows", [RING, GROWING, MIXED])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("asked", [(7, 3, 0), (0, 3, 7), (1, 7, 2), (0, 0, 1)])
def test_rows_that_draft_different_numbers_see_only_their_own_block(
    asked: tuple[int, ...], causal: bool, windows: tuple[int | None, ...], target: Borrowed
) -> None:
    drafter = random_drafter(layer_windows=windows, layer_causal=(causal, causal), conv_kernel_size=4)
    assert_rows_draft_as_alone(drafter, target, [20, 0, 5], asked)


def test_a_short_block_that_sees_its_padding_is_caught(target: Borrowed, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = random_drafter(layer_windows=RING)
    attention = ContextViews.attention
    monkeypatch.setattr(
        ContextViews,
        "attention",
        lambda self, lengths, block_lengths, block: attention(self, lengths, torch.full_like(block_lengths, block), block),
    )
    with pytest.raises(AssertionError):
        assert_rows_draft_as_alone(drafter, target, [20, 0, 5], (7, 3, 0))


def test_rows_that_share_one_length_are_caught(target: Borrowed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant takes the longest row's length for every row: masks and ring slots of the others are then wrong."""
    drafter = random_drafter(layer_windows=RING)
    attention = ContextViews.attention
    monkeypatch.setattr(
        ContextViews,
        "attention",
        lambda self, lengths, block_lengths, block: attention(
            self, torch.full_like(lengths, int(lengths.max())), block_lengths, block
        ),
    )
    with pytest.raises(AssertionError):
        assert_rows_draft_as_alone(drafter, target, [20, 0, 5], (7, 7, 7))


def test_rows_appended_together_with_padding_equal_rows_appended_alone(target: Borrowed) -> None:
    for windows in (RING, GROWING, MIXED):
        drafter = random_drafter(layer_windows=windows)
        together, apart = drafter.new_context(3), drafter.new_context(3)
        for _ in range(3):
            together.join()
            apart.join()
        for step, counts in enumerate([(30, 2, 0), (1, 8, 3), (4, 0, 20), (0, 0, 0), (1, 1, 1)]):
            taps = torch.stack([features(30, seed=10 * step + row) for row in range(3)])
            for row, count in enumerate(counts):
                taps[row, count:] = torch.nan  # a padded batch may hold anything there
                append(apart, row, taps[row, :count])
            together.append(taps, counts)
        assert together.lengths == apart.lengths == [36, 11, 24]
        first, second = (target.propose(drafter, rows, [1, 2, 3], [7, 7, 7]) for rows in (together, apart))
        assert first.proposal.lengths.tolist() == [7, 7, 7]
        assert torch.equal(first.proposal.tokens, second.proposal.tokens)
        torch.testing.assert_close(first.hidden, second.hidden, atol=1e-5, rtol=1e-5)


def test_only_the_first_rows_take_part_where_fewer_are_asked(target: Borrowed) -> None:
    drafter = random_drafter(layer_windows=RING)
    rows = context_of(drafter, [features(9, 0), features(30, 1), features(4, 2)])
    some, all_ = target.propose(drafter, rows, [1, 2], [7, 7]), target.propose(drafter, rows, [1, 2, 3], [7, 7, 7])
    assert [some.tokens(0), some.tokens(1)] == [all_.tokens(0), all_.tokens(1)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 40)),
        st.tuples(st.just("leave"), st.integers(0, 3)),
        st.tuples(st.just("append"), st.integers(1, 20)),
    ),
    min_size=1,
    max_size=12,
)


def follow(drafter: Drafter, target: Borrowed, steps: Iterable[tuple[str, int]], rows: DrafterContext) -> int:
    """Play the steps beside a plain list of what each row has seen; at the end each row drafts as a fresh one does."""
    seen: list[Tensor] = []
    for step, (action, number) in enumerate(steps):
        if action == "join" and len(seen) < rows.max_rows:
            assert rows.join() == len(seen)
            seen.append(features(number, seed=step))
            append(rows, len(seen) - 1, seen[-1])
        elif action == "leave" and seen:
            row = number % len(seen)
            rows.leave(row)
            seen[row] = seen[-1]
            seen.pop()
        elif action == "append" and seen:
            news = [features(number % (row + 3), seed=100 * step + row) for row in range(len(seen))]
            padded = torch.nn.utils.rnn.pad_sequence(news, batch_first=True)
            rows.append(padded, [len(new) for new in news])
            seen = [torch.cat(pair) for pair in zip(seen, news, strict=True)]
    assert rows.lengths == [len(taps) for taps in seen]
    if not seen:
        return 0
    anchors = list(range(len(seen)))
    batch = target.propose(drafter, rows, anchors, [7] * len(seen))
    assert batch.proposal.lengths.tolist() == [7] * len(seen)
    for row, taps in enumerate(seen):
        assert_same_drafts(batch, row, target.propose(drafter, context_of(drafter, [taps]), [anchors[row]], [7]))
    return len(seen)


@pytest.mark.parametrize("windows", [RING, GROWING, MIXED])
@settings(max_examples=25)
@given(steps=STEPS)
def test_rows_that_join_and_leave_at_random_never_disturb_each_other(
    windows: tuple[int | None, ...], steps: list[tuple[str, int]]
) -> None:
    drafter = random_drafter(layer_windows=windows)
    follow(drafter, borrowed(), steps, drafter.new_context(4))


HOLE = [("join", 9), ("join", 30), ("join", 4), ("leave", 0), ("append", 2)]


class ForgetsToMove(DrafterContext):
    def leave(self, row: int) -> None:
        self.lengths[row], self.finite[row] = self.lengths[-1], self.finite[self.active - 1]
        self.lengths.pop()


class ForgetsTheLength(DrafterContext):
    def leave(self, row: int) -> None:
        kept = self.lengths[row]
        super().leave(row)
        if row < self.active:
            self.lengths[row] = kept


@pytest.mark.parametrize("mutant", [ForgetsToMove, ForgetsTheLength])
def test_a_hole_that_is_not_filled_by_the_last_row_is_caught(mutant: type[DrafterContext], target: Borrowed) -> None:
    drafter = random_drafter(layer_windows=RING)
    assert follow(drafter, target, HOLE, drafter.new_context(3)) == 2
    with pytest.raises(AssertionError):
        follow(drafter, target, HOLE, mutant(drafter, 3))


@pytest.mark.parametrize("windows", [RING, GROWING, MIXED])
@pytest.mark.parametrize("last", [0, 1, 3, 40])
def test_a_row_used_again_after_a_long_request_is_as_new(windows: tuple[int | None, ...], last: int, target: Borrowed) -> None:
    drafter = random_drafter(layer_windows=windows)
    rows = context_of(drafter, [features(700, 1)])
    target.propose(drafter, rows, [5], [7])
    rows.leave(0)
    append(rows, rows.join(), features(last, 2))
    fresh = context_of(drafter, [features(last, 2)])
    again, new = target.propose(drafter, rows, [1], [7]), target.propose(drafter, fresh, [1], [7])
    assert again.proposal.lengths.tolist() == [7]
    assert_same_drafts(again, 0, new)


def test_rows_are_opened_closed_and_filled_outside_inference_mode_after_the_buffers_grew() -> None:
    """`append` grows them in inference mode; tensors made there could not be written outside of it."""
    drafter = random_drafter(layer_windows=GROWING)
    rows = context_of(drafter, [features(DrafterContext.FIRST_CAPACITY + 1, 0)], max_rows=3)
    rows.join()
    rows.join()
    rows.leave(0)
    assert rows.lengths == [0, 0]


def test_a_row_that_is_not_in_use_and_counts_that_do_not_fit_are_refused() -> None:
    rows = context_of(random_drafter(), [features(3, 0)], max_rows=2)
    for row in (1, -1):
        with pytest.raises(IndexError, match="not in use"):
            rows.leave(row)
    for taps, counts in ((features(2, 1)[None], [3]), (features(2, 1)[None], [1, 1]), (features(2, 1)[None], [-1])):
        with pytest.raises(ValueError, match="counts"):
            rows.append(taps, counts)
    assert rows.lengths == [3]
    rows.join()
    with pytest.raises(RuntimeError, match="all 2 rows"):
        rows.join()


@pytest.mark.parametrize("windows", [RING, GROWING, MIXED, (1, 1), (2, 2)])
@pytest.mark.parametrize("length", [1, 11, 12, 13, 40])
def test_a_prompt_in_chunks_of_any_size_gives_the_same_drafts(
    windows: tuple[int | None, ...], length: int, target: Borrowed
) -> None:
    """Chunks longer than the window, as long as the ring and one more among them."""
    drafter = random_drafter(layer_windows=windows)
    taps = features(length, 3)
    whole = target.propose(drafter, context_of(drafter, [taps]), [9], [7])
    for chunk in (1, 3, 7):
        rows = drafter.new_context()
        append(rows, rows.join(), taps, chunk)
        assert_same_drafts(target.propose(drafter, rows, [9], [7]), 0, whole)


def test_a_chunk_that_loses_its_place_is_caught(target: Borrowed) -> None:
    """The mutant rebases each chunk to position 0: right for a prompt in one piece, wrong for any other."""

    class Rebases(DrafterContext):
        def append(self, taps: Tensor, counts: Sequence[int], *, first_row: int = 0) -> None:
            kept = list(self.lengths)
            self.lengths = [0] * len(kept)
            super().append(taps, counts, first_row=first_row)
            self.lengths = [old + new for old, new in zip(kept, self.lengths, strict=True)]

    drafter = random_drafter(layer_windows=RING)
    taps = features(11, 3)
    whole = target.propose(drafter, context_of(drafter, [taps]), [9], [7])
    rows = Rebases(drafter)
    append(rows, rows.join(), taps)
    assert_same_drafts(target.propose(drafter, rows, [9], [7]), 0, whole)
    rows = Rebases(drafter)
    append(rows, rows.join(), taps, 3)
    with pytest.raises(AssertionError):
        assert_same_drafts(target.propose(drafter, rows, [9], [7]), 0, whole)


def buffers(rows: DrafterContext) -> list[int]:
    return [buffer.data_ptr() for buffer in (*rows._keys, *rows._values)]


def test_memory_is_bounded_by_the_window_when_every_layer_slides(target: Borrowed) -> None:
    drafter = random_drafter(layer_windows=(64, 64), max_position_embeddings=262144)
    rows = context_of(drafter, [features(10, 0)])
    bytes_at_start, places = rows.num_bytes, buffers(rows)
    slots = 8 + (64 - 1) + 1  # the block, the window less one, the slot for padding
    assert bytes_at_start == 2 * 2 * 2 * slots * 8 * 4  # keys and values, layers, heads, slots, head_dim, float32
    taps = features(5000, 1)
    for start in range(0, 5000, 250):
        append(rows, 0, taps[start : start + 250], chunk=5)
        target.propose(drafter, rows, [1], [7])
    assert rows.lengths == [5010]
    assert rows.num_bytes == bytes_at_start
    assert buffers(rows) == places, "the ring was moved"
    last = context_of(drafter, [torch.cat((features(10, 0), taps))])
    assert_same_drafts(
        target.propose(drafter, rows, [1], [7]), 0, target.propose(drafter, last, [1], [7])
    )  # after 79 times round


def test_memory_that_grows_with_the_context_is_caught(target: Borrowed, monkeypatch: pytest.MonkeyPatch) -> None:
    class NeverARing(DrafterContext):
        def __init__(self, drafter: Drafter, max_rows: int = 1) -> None:
            super().__init__(drafter, max_rows)
            self.limit = None

    monkeypatch.setattr(Drafter, "new_context", lambda self, max_rows=1: NeverARing(self, max_rows))
    with pytest.raises(AssertionError):
        test_memory_is_bounded_by_the_window_when_every_layer_slides(target)


def test_buffers_double_where_a_layer_sees_everything_and_are_never_moved_between(target: Borrowed) -> None:
    drafter = random_drafter(layer_windows=MIXED)
    rows = context_of(drafter, [features(1, 0)])
    taps, moved, places = features(2000, 1), 0, buffers(rows)
    for start in range(0, 2000, 8):
        append(rows, 0, taps[start : start + 8])
        if start % 200 == 0:
            target.propose(drafter, rows, [1], [7])
        moved += buffers(rows) != places
        places = buffers(rows)
    assert rows.capacity == 8 * DrafterContext.FIRST_CAPACITY
    assert moved == 3  # 256 -> 512 -> 1024 -> 2048
    whole = context_of(drafter, [torch.cat((features(1, 0), taps))])
    assert_same_drafts(target.propose(drafter, rows, [1], [7]), 0, target.propose(drafter, whole, [1], [7]))


def test_a_long_prompt_at_once_reserves_its_own_length_at_least(target: Borrowed) -> None:
    rows = context_of(random_drafter(layer_windows=GROWING), [features(1500, 0)])
    assert rows.capacity == 1500


@pytest.mark.parametrize("window", [262144, 2**31 - 1])
def test_a_huge_window_allocates_little_and_grows_with_the_text(window: int, target: Borrowed) -> None:
    """T-SEC. The window is a number in a file: memory follows the text."""
    drafter = random_drafter(layer_windows=(window, window), max_position_embeddings=2**20)
    rows = drafter.new_context()
    assert rows.num_bytes == random_drafter(layer_windows=MIXED).new_context().num_bytes
    taps, places, moved = features(2000, 1), buffers(rows), 0
    rows.join()
    for start in range(0, 2000, 8):
        append(rows, 0, taps[start : start + 8])
        moved += buffers(rows) != places
        places = buffers(rows)
    assert (rows.capacity, moved) == (8 * DrafterContext.FIRST_CAPACITY, 3)
    whole = random_drafter(layer_windows=(None, None))
    expected = target.propose(whole, context_of(whole, [taps]), [1], [7])
    assert_same_drafts(target.propose(drafter, rows, [1], [7]), 0, expected)


@pytest.mark.parametrize(
    ("window", "positions", "limit"), [(700, 4096, 699), (258, 4096, 257), (257, 4096, 256), (4000, 600, 600), (4000, 100, 100)]
)
def test_a_ring_grows_up_to_its_window_and_the_drafters_positions_and_then_stays(
    window: int, positions: int, limit: int, target: Borrowed
) -> None:
    drafter = random_drafter(layer_windows=(window, window), max_position_embeddings=positions)
    rows = drafter.new_context(3)
    for _ in range(3):
        rows.join()
    assert rows.capacity == min(limit, DrafterContext.FIRST_CAPACITY)
    seen = [features(0, 0) for _ in range(3)]
    for step, counts in enumerate(
        [(200, 0, 90), (60, 3, 1), (300, 250, 5), (30, 20, 0), (700, 5, 9), (1, 300, 4), (900, 7, 2)]
    ):
        taps = torch.stack([features(900, seed=10 * step + row) for row in range(3)])
        rows.append(taps, counts)
        seen = [torch.cat((old, new[:count])) for old, new, count in zip(seen, taps, counts, strict=True)]
    assert rows.capacity == limit
    draft = target.propose(drafter, rows, [1, 2, 3], [7, 7, 7])
    for row, taps in enumerate(seen):
        if len(taps) <= positions:  # past its positions a drafter is not asked
            alone = random_drafter(layer_windows=(window, window), max_position_embeddings=4096)
            expected = hidden_by_dense_masks(alone, taps, row + 1, 7, target.embedding)
            torch.testing.assert_close(draft.hidden[row], expected[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("windows", [(700, 700), GROWING])
def test_memory_that_grew_is_given_back_when_the_last_row_leaves(windows: tuple[int | None, ...], target: Borrowed) -> None:
    drafter = random_drafter(layer_windows=windows)
    rows = drafter.new_context(2)
    at_start = rows.num_bytes
    append(rows, rows.join(), features(600, 0))
    append(rows, rows.join(), features(9, 1))
    grown = rows.num_bytes
    assert grown > 2 * at_start
    rows.leave(0)
    assert rows.num_bytes == grown, "another row is still at work"
    rows.leave(0)
    assert rows.num_bytes == at_start
    append(rows, rows.join(), features(300, 2))
    alone = target.propose(drafter, context_of(drafter, [features(300, 2)]), [1], [7])
    assert_same_drafts(target.propose(drafter, rows, [1], [7]), 0, alone)


def test_memory_that_did_not_grow_is_kept() -> None:
    rows = context_of(random_drafter(layer_windows=RING), [features(30, 0)])
    places = buffers(rows)
    rows.leave(0)
    assert buffers(rows) == places


@pytest.mark.parametrize("windows", [RING, GROWING, MIXED])
@pytest.mark.parametrize("position", [0, 10, 19])
@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
def test_health_does_not_depend_on_how_a_prompt_is_chunked(chunk: int, position: int, windows: tuple[int | None, ...]) -> None:
    """A position that the ring passes over at once is judged like any other."""
    taps = features(20, 0)
    taps[position, 3] = torch.nan
    rows = random_drafter(layer_windows=windows).new_context()
    append(rows, rows.join(), taps, chunk)
    assert rows.finite.tolist() == [False]


def hidden_by_dense_masks(drafter: Drafter, taps: Tensor, anchor: int, drafts: int, embedding: Tensor) -> Tensor:
    """The reference: no ring, no buffer, every position kept, masks written out pair by pair."""
    config, s = drafter.config, len(taps)
    context_positions, block_positions = torch.arange(s)[None], torch.arange(s, s + drafts + 1)[None]
    committed = drafter.context_kv(drafter.encode_taps(taps[None]), context_positions)
    groups = config.num_attention_heads // config.num_key_value_heads

    def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window, causal = config.layer_windows[index], config.layer_causal[index]
        keys = torch.cat((committed[index][0], k), dim=2).repeat_interleave(groups, dim=1)
        values = torch.cat((committed[index][1], v), dim=2).repeat_interleave(groups, dim=1)
        scores = q @ keys.mT / config.head_dim**0.5
        for i in range(drafts + 1):
            for key_position in range(s + drafts + 1):
                distance = s + i - key_position
                too_far = window is not None and distance >= window
                ahead = distance < 0 and (causal or (window is not None and -distance >= window))
                if too_far or ahead:
                    scores[:, :, i, key_position] = -torch.inf
        return scores.softmax(-1) @ values

    ids = torch.tensor([[anchor] + [config.mask_token_id] * drafts])
    return drafter.hidden(embedding[ids], block_positions, attend)[:, 1:]


@torch.inference_mode()
def assert_equal_to_dense_masks(target: Borrowed, length: int, drafts: int, chunk: int, **changes: object) -> None:
    drafter = random_drafter(seed=4, **changes)
    taps = features(length, 5)
    rows = drafter.new_context()
    append(rows, rows.join(), taps, chunk)
    draft = target.propose(drafter, rows, [11], [drafts])
    assert draft.proposal.lengths.tolist() == [drafts]
    expected = hidden_by_dense_masks(drafter, taps, 11, drafts, target.embedding)
    torch.testing.assert_close(draft.hidden, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", range(1, 13))
def test_a_window_of_any_width_equals_a_dense_mask(window: int, causal: bool, target: Borrowed) -> None:
    for windows in ((window, window), (window, None)):
        for length in (0, 3, window, 12, 25):
            assert_equal_to_dense_masks(target, length, 7, 4, layer_windows=windows, layer_causal=(causal, not causal))


@settings(max_examples=40)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=3),
    st.integers(0, 30),
    st.integers(1, 7),
    st.integers(1, 30),
)
def test_any_mix_of_layers_equals_dense_masks(
    window: int, layers: list[tuple[bool, bool]], length: int, drafts: int, chunk: int
) -> None:
    windows = tuple(window if slides else None for slides, _ in layers)
    causal = tuple(flag for _, flag in layers)
    assert_equal_to_dense_masks(
        borrowed(), length, drafts, chunk, layer_windows=windows, layer_causal=causal, num_hidden_layers=len(layers)
    )


def one_longer(positions: Tensor, queries: Tensor, window: int | None) -> Tensor:
    return seen_in_context(positions, queries, None if window is None else window + 1)


def one_shorter(positions: Tensor, queries: Tensor, window: int | None) -> Tensor:
    return seen_in_context(positions, queries, None if window is None else window - 1)


def without_a_window(positions: Tensor, queries: Tensor, window: int | None) -> Tensor:
    return seen_in_context(positions, queries, None)


def unwritten_slots_too(positions: Tensor, queries: Tensor, window: int | None) -> Tensor:
    return seen_in_context(positions.abs(), queries, window)


seen_in_context, seen_in_block = masks.visible_in_context, masks.visible_in_block


@pytest.mark.parametrize(("mutant", "length"), [(one_longer, 25), (one_shorter, 25), (without_a_window, 25)])
def test_a_context_window_of_another_width_is_caught(
    mutant: object, length: int, target: Borrowed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "visible_in_context", mutant)
    with pytest.raises(AssertionError):
        assert_equal_to_dense_masks(target, length, 7, 4, layer_windows=(5, 5))


def test_a_slot_that_holds_nothing_yet_but_is_seen_is_caught(target: Borrowed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "visible_in_context", unwritten_slots_too)
    with pytest.raises(AssertionError):
        assert_rows_draft_as_alone(random_drafter(layer_windows=RING), target, [2, 9], [7, 7])


@pytest.mark.parametrize(
    "mutant",
    [
        lambda length, window, causal, device: seen_in_block(length, window, not causal, device),
        lambda length, window, causal, device: seen_in_block(length, None, causal, device),
        lambda length, window, causal, device: seen_in_block(length, window, causal, device).tril(),
        lambda length, window, causal, device: seen_in_block(length, window, True, device) | seen_in_block(length, None, False),
    ],
    ids=["causality flipped", "window lost", "later rows never seen", "later rows seen without a window"],
)
def test_a_block_seen_wrongly_is_caught(mutant: object, target: Borrowed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "visible_in_block", mutant)
    with pytest.raises(AssertionError):
        assert_equal_to_dense_masks(target, 25, 7, 4, layer_windows=(5, 5), layer_causal=(False, False))


@pytest.mark.parametrize("window", [1, 2, 3, 5, 8, 12])
def test_a_token_outside_the_window_changes_nothing_and_one_inside_does(window: int, target: Borrowed) -> None:
    drafter = random_drafter(seed=6, layer_windows=(window, window))
    taps, s = features(20, 7), 20
    before = target.propose(drafter, context_of(drafter, [taps]), [1], [7])
    for position in range(s):
        changed = taps.clone()
        changed[position] = features(1, 100 + position)[0]
        after = target.propose(drafter, context_of(drafter, [changed]), [1], [7])
        inside = s - position < window
        assert torch.equal(before.hidden, after.hidden) is not inside, f"position {position} of a window of {window}"


@pytest.mark.parametrize("window", [2, 3, 5, 8, 12])
def test_each_row_of_the_block_has_a_window_of_its_own(window: int, target: Borrowed) -> None:
    """One layer without convolutions: row k sees position p of the context if and only if s + k - p < W, and nothing else."""
    drafter = random_drafter(seed=6, version=1, num_hidden_layers=1, layer_windows=(window,))
    taps, s = features(20, 7), 20
    before = target.propose(drafter, context_of(drafter, [taps]), [1], [7]).hidden[0]
    for position in range(s):
        changed = taps.clone()
        changed[position] = features(1, 100 + position)[0]
        after = target.propose(drafter, context_of(drafter, [changed]), [1], [7]).hidden[0]
        moved = (before != after).any(-1).tolist()
        assert moved == [s + k - position < window for k in range(1, 8)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2, 5, 8])
@torch.inference_mode()
def test_a_later_slot_reaches_an_earlier_one_only_if_not_causal(window: int | None, causal: bool, target: Borrowed) -> None:
    drafter = random_drafter(seed=8, num_hidden_layers=1, layer_windows=(window,), layer_causal=(causal,))
    rows = context_of(drafter, [features(6, 9)])
    block = target.embedding[torch.arange(8)][None]

    def hidden(block: Tensor) -> Tensor:
        attend = rows.views([8], 8).attention(torch.tensor([6]), torch.tensor([8]), 8)
        return drafter.hidden(block, torch.arange(6, 14)[None], attend)[0]

    before = hidden(block)
    for slot in range(1, 8):
        changed = block.clone()
        changed[:, slot] += 1.0
        moved = (hidden(changed) != before).any(-1).tolist()
        assert moved[slot]
        for earlier in range(slot):
            seen = not causal and (window is None or slot - earlier < window)
            assert moved[earlier] is seen, f"slot {slot} and row {earlier}"


BROKEN_VALUES = [torch.nan, -torch.nan, torch.inf, -torch.inf]
SICK = 1  # of three rows


def poisoned(place: str, value: float, version: int, sampled: bool) -> tuple[Draft, Draft, Drafter, DrafterContext, Borrowed]:
    """Three rows, healthy, and the same three with `value` in one place of the middle one."""
    drafter, target = random_drafter(seed=3, version=version, layer_windows=RING), borrowed()
    rows = [features(9, 0), features(4, 1), features(30, 2)]
    options: dict[str, list[float]] = {"temperature": [0.9, 0.9, 0.0], "seeds": [1, 2, 3]} if sampled else {}
    healthy = target.propose(drafter, context_of(drafter, rows), [1, 2, 3], [7, 7, 7], **options)
    spoil = {}
    if place == "taps":
        rows[SICK][2, 5] = value
    elif place == "the anchor's embedding":
        target.embedding[2, 3] = value
    elif place == "a logit":

        def spoilt(logits: Tensor) -> Tensor:
            logits[SICK, 3, 30] = value
            return logits

        spoil = {"spoil": spoilt}
    elif place == "the selector":
        drafter.candidate_selector.predecessor_codebook[2, 4] = value
    opened = context_of(drafter, rows)
    return healthy, target.propose(drafter, opened, [1, 2, 3], [7, 7, 7], **options, **spoil), drafter, opened, target


PLACES = [
    *[(place, value, 2) for place in ("taps", "the anchor's embedding", "the selector") for value in BROKEN_VALUES],
    *[(place, value, 1) for place in ("taps", "the anchor's embedding") for value in BROKEN_VALUES],
    # One id at -inf is a choice, not a fault; with +inf or a NaN no score means anything.
    *[("a logit", value, version) for value in BROKEN_VALUES[:3] for version in (1, 2)],
]


def assert_the_sick_row_alone_drafts_nothing(place: str, value: float, version: int, sampled: bool) -> None:
    healthy, draft, *_ = poisoned(place, value, version, sampled)
    assert healthy.proposal.lengths.tolist() == [7, 7, 7]
    assert draft.proposal.lengths.tolist() == [7, 0, 7]
    for row in (0, 2):
        assert draft.tokens(row) == healthy.tokens(row)
        assert torch.equal(draft.hidden[row], healthy.hidden[row])
        if sampled:
            assert draft.proposal.probs is not None
            assert draft.proposal.probs[row].isfinite().all()


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("place", "value", "version"), PLACES)
def test_a_row_with_numbers_that_are_not_finite_drafts_nothing_and_leaves_its_neighbours_alone(
    place: str, value: float, version: int, sampled: bool
) -> None:
    assert_the_sick_row_alone_drafts_nothing(place, value, version, sampled)


@pytest.mark.parametrize("place", ["the anchor's embedding", "a logit", "the selector"])
def test_a_drafter_that_does_not_look_for_what_is_not_finite_is_caught(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = Drafter._choose

    def blind(self: Drafter, hidden: Tensor, logits: Tensor, anchors: Tensor, lengths: Tensor, *rest: Tensor) -> object:
        seen = choose(self, hidden, logits, anchors, lengths, *rest)
        return type(seen)(tokens=seen.tokens, lengths=lengths, candidates=seen.candidates, probs=seen.probs)

    monkeypatch.setattr(Drafter, "_choose", blind)
    with pytest.raises(AssertionError):
        assert_the_sick_row_alone_drafts_nothing(place, torch.nan, 2, False)


def test_a_row_that_joins_into_the_place_of_a_sick_one_is_healthy() -> None:
    _, draft, drafter, rows, target = poisoned("taps", torch.nan, 2, False)
    assert draft.proposal.lengths.tolist() == [7, 0, 7]
    append(rows, SICK, features(40, 8))
    still = target.propose(drafter, rows, [1, 2, 3], [7, 7, 7])
    assert still.proposal.lengths.tolist() == [7, 0, 7], "a row whose features were broken drafts nothing until it leaves"
    rows.leave(SICK)
    assert rows.join() == 2
    append(rows, 2, features(5, 9))
    healed = target.propose(drafter, rows, [1, 2, 3], [7, 7, 7])
    assert healed.proposal.lengths.tolist() == [7, 7, 7]
    alone = target.propose(drafter, context_of(drafter, [features(5, 9)]), [3], [7])
    assert_same_drafts(healed, 2, alone)


def test_a_row_that_joins_without_a_clean_buffer_is_caught() -> None:
    class KeepsTheDirt(DrafterContext):
        def join(self) -> int:
            self.lengths.append(0)
            self.finite[self.active - 1] = True
            return self.active - 1

    drafter, target = random_drafter(seed=3, layer_windows=RING), borrowed()
    for kind, drafted in ((DrafterContext, 7), (KeepsTheDirt, 0)):
        rows = kind(drafter, 2)
        append(rows, rows.join(), features(12, 0))
        append(rows, rows.join(), torch.full((4, WIDTH), torch.nan))
        rows.leave(1)
        rows.join()
        append(rows, 1, features(1, 1))
        assert target.propose(drafter, rows, [1, 2], [7, 7]).proposal.lengths.tolist() == [7, drafted]


def test_numbers_that_are_not_finite_past_the_drafts_asked_do_not_matter(target: Borrowed) -> None:
    drafter = random_drafter(layer_windows=RING)

    def spoil(logits: Tensor) -> Tensor:
        logits[0, 4:] = torch.nan
        return logits

    rows = [features(9, 0), features(4, 1)]
    draft = target.propose(drafter, context_of(drafter, rows), [1, 2], [3, 7], spoil=spoil)
    assert draft.proposal.lengths.tolist() == [3, 7]
    assert draft.tokens(0) == target.propose(drafter, context_of(drafter, rows), [1, 2], [3, 7]).tokens(0)


def test_no_row_at_all_may_be_healthy() -> None:
    drafter, target = random_drafter(layer_windows=RING), borrowed()
    rows = context_of(drafter, [torch.full((3, WIDTH), torch.nan)] * 2)
    draft = target.propose(drafter, rows, [1, 2], [7, 3], seeds=[1, 2], temperature=[1.0, 0.0])
    assert draft.proposal.lengths.tolist() == [0, 0]


@pytest.mark.parametrize("place", ["fc.weight", "layers.1.mlp.down_proj.weight", "candidate_selector.hidden_projection.weight"])
def test_weights_that_overflow_half_precision_draft_nothing(place: str) -> None:
    target = borrowed()
    half = Borrowed(embedding=target.embedding.half(), head=target.head.half())
    for factor, drafted in ((1.0, 7), (6e4, 0)):
        drafter = random_drafter(seed=3, layer_windows=RING).half()
        drafter.get_parameter(place).mul_(factor)
        draft = half.propose(drafter, context_of(drafter, [features(9, 0)]), [1], [7])
        assert draft.proposal.lengths.tolist() == [drafted]


def test_without_rows_the_proposal_is_empty(target: Borrowed) -> None:
    for version in (1, 2):
        drafter = random_drafter(version=version)
        for rows in (drafter.new_context(), context_of(drafter, [features(3, 0)])):
            proposal = target.propose(drafter, rows, [], []).proposal
            assert (proposal.tokens.shape, proposal.lengths.shape) == ((0, 0), (0,))
            assert (proposal.tokens.dtype, proposal.lengths.dtype) == (torch.int64, torch.int64)


def test_drafts_that_no_block_holds_and_rows_that_are_not_there_are_refused(target: Borrowed) -> None:
    drafter = random_drafter()
    rows = context_of(drafter, [features(3, 0)])
    for asked in ([8], [-1], [3, 3]):
        with pytest.raises(ValueError, match=r"drafts asked"):
            target.propose(drafter, rows, [1] * len(asked), asked)


@pytest.mark.parametrize("part", ["attention_conv", "mlp_conv", "selector"])
def test_weights_of_each_part_change_the_drafts(part: str, target: Borrowed) -> None:
    drafter = random_drafter(seed=1, layer_windows=RING)
    torch.nn.init.normal_(drafter.candidate_selector.successor_codebook, generator=torch.Generator().manual_seed(0))
    rows = [features(9, 0)] * 8
    anchors = list(range(8))
    before = target.propose(drafter, context_of(drafter, rows), anchors, [7] * 8).proposal.tokens
    with torch.no_grad():
        if part == "selector":
            drafter.candidate_selector.successor_codebook.zero_()
        else:
            for block in drafter.layers:
                conv = getattr(block, part)
                conv.base_kernel.zero_()
                conv.kernel_projection.weight.zero_()
    after = target.propose(drafter, context_of(drafter, rows), anchors, [7] * 8).proposal.tokens
    assert not torch.equal(before, after)


def test_a_convolution_that_is_loaded_and_not_run_is_caught(target: Borrowed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer.DrafterLayer, "_mlp", lambda self, u: self.mlp(u))
    monkeypatch.setattr(
        layer.DrafterLayer, "_attention", lambda self, u, *rest: self.self_attn(u, rest[0], self.index, rest[1])
    )
    for part in ("attention_conv", "mlp_conv"):
        with pytest.raises(AssertionError):
            test_weights_of_each_part_change_the_drafts(part, target)


def test_the_q_handed_over_is_that_of_the_walk(target: Borrowed) -> None:
    drafter = random_drafter(seed=2, layer_windows=RING)
    rows, anchors = [features(9, 0), features(4, 1), features(20, 2)], [1, 2, 3]
    temperature, seeds = [0.7, 0.0, 1.3], [5, 6, 7]
    draft = target.propose(drafter, context_of(drafter, rows), anchors, [7, 7, 7], temperature=temperature, seeds=seeds)
    proposal, selector = draft.proposal, drafter.candidate_selector
    assert proposal.candidates is not None
    assert proposal.probs is not None
    logits = draft.hidden @ target.head.T
    for b in range(3):
        before = anchors[b]
        for t in range(7):
            candidates = proposal.candidates[b, t]
            assert set(candidates.tolist()) == set(logits[b, t].topk(5).indices.tolist())
            gate = selector.hidden_projection(draft.hidden[b, t])
            scores = logits[b, t, candidates] + selector.successor_codebook[candidates] @ (
                selector.predecessor_codebook[before] * gate
            )
            token = int(proposal.tokens[b, t])
            if temperature[b] == 0:
                assert token == int(candidates[scores.argmax()])
                expected = (candidates == token).float()
            else:
                expected = (scores / temperature[b]).softmax(-1)
            torch.testing.assert_close(proposal.probs[b, t], expected, atol=1e-5, rtol=1e-4)
            before = token


@pytest.mark.parametrize("version", [1, 2])
def test_q_is_left_out_where_no_row_draws(version: int, target: Borrowed) -> None:
    drafter = random_drafter(version=version)
    proposal = target.propose(drafter, context_of(drafter, [features(3, 0)]), [1], [7]).proposal
    assert proposal.probs is None


def test_dflash_1_hands_over_q_of_the_whole_vocabulary(target: Borrowed) -> None:
    drafter = random_drafter(seed=2, version=1, layer_windows=RING)
    rows = [features(9, 0), features(4, 1)]
    draft = target.propose(drafter, context_of(drafter, rows), [1, 2], [7, 7], temperature=[0.7, 0.0], seeds=[5, 6])
    assert draft.proposal.candidates is None
    assert draft.proposal.probs is not None
    logits = draft.hidden @ target.head.T
    torch.testing.assert_close(draft.proposal.probs[0], (logits[0] / 0.7).softmax(-1), atol=1e-5, rtol=1e-4)
    assert torch.equal(draft.proposal.probs[1], torch.nn.functional.one_hot(logits[1].argmax(-1), 37).float())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("temperature", [1e-38, 1e-30, 1e30])
def test_no_temperature_overflows_q(version: int, temperature: float, target: Borrowed) -> None:
    drafter = random_drafter(seed=2, version=version)
    rows = context_of(drafter, [features(9, 0)])
    draft = target.propose(drafter, rows, [1], [7], temperature=[temperature], seeds=[5])
    assert draft.proposal.probs is not None
    assert draft.proposal.probs.isfinite().all()
    assert draft.proposal.lengths.tolist() == [7]
    if temperature < 1:
        assert draft.tokens(0) == target.propose(drafter, rows, [1], [7]).tokens(0)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_rows_of_a_padded_head_are_never_offered(version: int, sampled: bool) -> None:
    target, drafter = borrowed(rows=40), random_drafter(version=version, **({} if version == 1 else {"selector_top_k": 37}))
    options: dict[str, list[float]] = {"temperature": [1.5], "seeds": [1]} if sampled else {}

    def spoil(logits: Tensor) -> Tensor:
        logits[..., 37:] = 1000.0
        return logits

    draft = target.propose(drafter, context_of(drafter, [features(9, 0)]), [1], [7], spoil=spoil, **options)
    assert draft.proposal.lengths.tolist() == [7]
    assert draft.proposal.tokens.max() < 37
    if version == 2:
        assert draft.proposal.candidates is not None
        assert draft.proposal.candidates.sort(-1).values.tolist() == [[list(range(37))] * 7]
    if sampled:
        assert draft.proposal.probs is not None
        assert draft.proposal.probs.shape[-1] == 37


def test_a_head_whose_padding_is_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafter, "logits", lambda self, hidden, head: head(hidden))
    for version in (1, 2):
        with pytest.raises((AssertionError, IndexError)):
            test_the_rows_of_a_padded_head_are_never_offered(version, False)


OWN = {"embed_tokens.weight": (37, 16), "lm_head.weight": (37, 16), "mask_embedding": (16,)}


@pytest.mark.parametrize("part", OWN)
def test_an_own_embedding_head_or_mask_row_is_used_instead_of_the_targets(part: str) -> None:
    borrower = random_drafter(seed=5, layer_windows=RING, input_embedding_scale=1.5)
    owner = Drafter(borrower.config, own=[part])
    weight = torch.randn(OWN[part], generator=torch.Generator().manual_seed(1))
    owner.load_state_dict(borrower.state_dict() | {part: weight})
    target = borrowed()
    rows = [features(9, 0)]
    plain = target.propose(borrower, context_of(borrower, rows), [1], [7])
    own = target.propose(owner, context_of(owner, rows), [1], [7])

    with_it = borrowed()
    if part == "embed_tokens.weight":
        with_it.embedding = weight
    elif part == "lm_head.weight":
        with_it.head = weight
    else:
        with_it.embedding[owner.config.mask_token_id] = weight
    expected = with_it.propose(borrower, context_of(borrower, rows), [1], [7])
    assert own.tokens(0) == expected.tokens(0)
    assert own.tokens(0) != plain.tokens(0)
    if own.hidden.shape[-1] and expected.hidden.shape[-1]:
        torch.testing.assert_close(own.hidden, expected.hidden)


def test_the_embedding_scale_applies_to_the_anchor_and_to_the_masks(target: Borrowed) -> None:
    plain = random_drafter(seed=5, layer_windows=RING)
    scaled = random_drafter(seed=5, layer_windows=RING, input_embedding_scale=2.5)
    rows = [features(9, 0)]
    draft = target.propose(scaled, context_of(scaled, rows), [1], [7])
    larger = Borrowed(embedding=2.5 * target.embedding, head=target.head)
    torch.testing.assert_close(draft.hidden, larger.propose(plain, context_of(plain, rows), [1], [7]).hidden)
    for token in (1, plain.config.mask_token_id):
        one_only = target.embedding.clone()
        one_only[token] *= 2.5
        partly = Borrowed(embedding=one_only, head=target.head).propose(plain, context_of(plain, rows), [1], [7])
        assert not torch.allclose(draft.hidden, partly.hidden, atol=1e-3)


def test_multiplier_and_softcap_apply_to_the_logits_in_this_order(target: Borrowed) -> None:
    drafter = random_drafter(seed=5, version=1, output_multiplier=3.0, final_logit_softcapping=2.0)
    draft = target.propose(drafter, context_of(drafter, [features(9, 0)]), [1], [7], temperature=[1.0], seeds=[3])
    logits = 2.0 * torch.tanh(3.0 * (draft.hidden @ target.head.T) / 2.0)
    assert draft.proposal.probs is not None
    torch.testing.assert_close(draft.proposal.probs, logits.softmax(-1), atol=1e-5, rtol=1e-4)
