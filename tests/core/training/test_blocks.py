"""What a block sees in training: its own document before its anchor, inside the window, and itself; nothing else."""

import pytest
import torch
from torch import Tensor

from dflash2_core.drafter import Drafter
from dflash2_core.training.blocks import all_anchors, block_attention, make_blocks, sample_anchors
from dflash2_core.training.documents import Batch, Document, collate
from tests.core.toys import MASK, VOCABULARY, random_drafter

D, T, N, FEATURES = 2, 20, 3, 3 * 16
ANCHORS = torch.tensor([[4, 9, 11], [3, 6, 12]])
KINDS = [(None, False), (None, True), (5, False), (5, True)]

with_every_kind = pytest.mark.parametrize(("window", "causal"), KINDS)


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(VOCABULARY - 3, (T,), generator=generator).tolist() for _ in range(D)]
    return collate([Document(row, 3) for row in rows])


def drafter_of(window: int | None, causal: bool) -> Drafter:
    return random_drafter(layer_windows=(window,) * 2, layer_causal=(causal,) * 2)


def embed(ids: Tensor) -> Tensor:
    table = torch.randn(VOCABULARY, 16, generator=torch.Generator().manual_seed(2))
    return table[ids]


def taps_of(seed: int = 3) -> Tensor:
    return torch.randn(D, T, FEATURES, generator=torch.Generator().manual_seed(seed))


def hidden_of(drafter: Drafter, batch: Batch, taps: Tensor, anchors: Tensor = ANCHORS) -> Tensor:
    """[D, N, B, H]"""
    blocks = make_blocks(batch, anchors, drafter.config.block_size, MASK)
    positions = torch.arange(T).expand(D, -1)
    context = drafter.context_kv(drafter.encode_taps(taps), positions)
    attend = block_attention(drafter.config, context, T, blocks)
    return drafter.hidden(drafter.embed(blocks.ids, embed), blocks.positions, attend).view(*anchors.shape, -1, 16)


@with_every_kind
def test_a_block_in_training_is_the_block_of_decoding(batch: Batch, window: int | None, causal: bool) -> None:
    drafter, taps = drafter_of(window, causal), taps_of()
    hidden = hidden_of(drafter, batch, taps)
    B = drafter.config.block_size
    for d in range(D):
        for n, anchor in enumerate(ANCHORS[d].tolist()):
            context = drafter.new_context()
            context.join()
            context.append(taps[d : d + 1, :anchor], [anchor])
            ids = torch.full((1, B), MASK)
            ids[0, 0] = batch.tokens[d, anchor]
            attend = context.views([B], B).attention(torch.tensor([anchor]), torch.tensor([B]), B)
            alone = drafter.hidden(drafter.embed(ids, embed), anchor + torch.arange(B)[None], attend)
            torch.testing.assert_close(hidden[d, n], alone[0], atol=1e-5, rtol=1e-5)


@with_every_kind
def test_what_a_block_may_not_see_changes_nothing(batch: Batch, window: int | None, causal: bool) -> None:
    drafter, taps = drafter_of(window, causal), taps_of()
    before = hidden_of(drafter, batch, taps)
    other = taps_of(seed=4)
    for d in range(D):
        for n, anchor in enumerate(ANCHORS[d].tolist()):
            changed = other.clone()  # the other document, and this one from the anchor on
            first_seen = 0 if window is None else max(0, anchor - window + 1)
            changed[d, first_seen:anchor] = taps[d, first_seen:anchor]
            anchors = ANCHORS.clone()  # and the other blocks elsewhere
            anchors[anchors != anchor] = 8
            tokens = batch.tokens.clone()
            tokens[d, anchor + 1 :], tokens[1 - d] = 0, 1
            after = hidden_of(drafter, Batch(tokens, batch.lengths, batch.prompt_lengths), changed, anchors)
            assert torch.equal(before[d, n], after[d, n])


@with_every_kind
def test_each_context_position_inside_the_window_is_seen(batch: Batch, window: int | None, causal: bool) -> None:
    drafter, taps = drafter_of(window, causal), taps_of()
    before = hidden_of(drafter, batch, taps)
    for position in range(T):
        changed = taps.clone()
        changed[:, position] += 1
        differs = (hidden_of(drafter, batch, changed) != before).flatten(3).any(-1)[:, :, 0]  # by the anchor's own row
        distance = ANCHORS - position
        seen = (distance > 0) & (distance < (window or T))
        assert torch.equal(differs, seen)


def test_labels_are_the_tokens_after_the_anchor_and_end_with_the_document() -> None:
    batch = collate([Document([5, 6, 7, 8, 9], 2), Document(list(range(10, 22)), 3)])
    blocks = make_blocks(batch, torch.tensor([[2, -1], [3, 10]]), 4, MASK)
    assert blocks.ids[:, 0].tolist()[::2] == [7, 13]
    assert torch.all(blocks.ids[:, 1:] == MASK)
    assert blocks.labels.tolist() == [[8, 9, 0], [0, 0, 0], [14, 15, 16], [21, 0, 0]]
    assert blocks.judged.tolist() == [[True, True, False], [False] * 3, [True] * 3, [True, False, False]]


def test_anchors_are_distinct_and_inside_the_response() -> None:
    batch = collate([Document([0] * 9, 4), Document([0] * 30, 2)])
    anchors = sample_anchors(batch, 8, torch.Generator().manual_seed(0))
    assert sorted(anchors[0].tolist()) == [-1, -1, -1, -1, 4, 5, 6, 7]
    assert len(set(anchors[1].tolist())) == 8
    assert all(2 <= anchor < 29 for anchor in anchors[1].tolist())


def test_asking_for_more_anchors_than_positions_pads() -> None:
    batch = collate([Document([0] * 5, 1)])
    assert sample_anchors(batch, 9, torch.Generator().manual_seed(0)).shape == (1, 9)


def test_all_anchors_are_every_position_with_a_successor() -> None:
    batch = collate([Document([0] * 5, 2), Document([0] * 7, 1)])
    assert all_anchors(batch).tolist() == [[2, 3, -1, -1, -1], [1, 2, 3, 4, 5]]
