"""Attention of blocks over SGLang's cache, against a loop over rows, heads and visible keys."""

import math

import pytest
import torch
from torch import Tensor

from dflash2_sglang.cpu.attention import block_attention, context_positions

B, HEADS, KV_HEADS, D = 4, 4, 2, 8


@pytest.mark.parametrize("window", [None, 1, 3, 6, 50])
@pytest.mark.parametrize("causal", [True, False])
def test_a_row_sees_its_context_and_its_block_by_window_and_causality(window: int | None, causal: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    lengths = torch.tensor([9, 1, 5])
    keys, values = (torch.randn(200, KV_HEADS, D, generator=generator) for _ in range(2))
    q = torch.randn(3, B, HEADS, D, generator=generator)
    table = torch.randperm(200, generator=generator)[: 3 * 20].view(3, 20)  # slot of each position
    positions = context_positions(lengths, window)
    block = torch.stack([row[length : length + B] for row, length in zip(table, lengths.tolist(), strict=True)])
    told = block_attention(
        q,
        keys,
        values,
        table.gather(1, positions.clamp(min=0)),
        positions,
        block,
        lengths=lengths,
        window=window,
        causal=causal,
        scale=1 / math.sqrt(D),
    )
    for n, length in enumerate(lengths.tolist()):
        for row in range(B):
            torch.testing.assert_close(told[n, row], by_hand(q[n, row], keys, values, table[n], length, row, window, causal))


def by_hand(
    q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, length: int, row: int, window: int | None, causal: bool
) -> Tensor:
    at = length + row
    seen = [
        position
        for position in range(length + B)
        if (window is None or abs(at - position) < window) and (not causal or position <= at)
    ]
    heads = []
    for head in range(HEADS):
        k, v = (cache[slots[seen], head // (HEADS // KV_HEADS)] for cache in (keys, values))
        heads.append((k @ q[head] / math.sqrt(D)).softmax(-1) @ v)
    return torch.stack(heads)


def test_no_more_of_the_context_is_read_than_a_window_shows() -> None:
    assert context_positions(torch.tensor([1000, 3]), 5).tolist() == [[999, 998, 997, 996], [2, 1, 0, -1]]
    assert context_positions(torch.tensor([2, 3]), None).tolist() == [[1, 0, -1], [2, 1, 0]]
