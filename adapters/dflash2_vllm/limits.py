"""Rows near the limit of positions: they draft nothing, and the others go on.

vLLM itself stops drafting for the whole batch as soon as one row comes near; what the target computed in those steps then never
reaches the drafter's cache, and the other rows' drafts stay worse for good. Here every step writes the context, and what lies
past the limit is written nowhere.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

NOWHERE = -1
"""vLLM's slot of what is not to be kept."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a draft is made from, on the device.

    context_positions, context_slots  [T], of the tokens that the target has just computed, rejected drafts included
    query_positions, query_slots      [B * (K + 1)], of the blocks; a block begins with its anchor
    """

    context_positions: Tensor
    context_slots: Tensor
    query_positions: Tensor
    query_slots: Tensor


def rows_that_fit(query_positions: Tensor, rows: int, limit: int) -> Tensor:
    """[B] bool: the whole block lies before position `limit`."""
    return query_positions.view(rows, -1)[:, -1] < limit


def keep_within(rows: Rows, limit: int) -> None:
    """In place: what stands at `limit` or later gets no slot, and a position that every table has."""
    for positions, slots in (
        (rows.context_positions, rows.context_slots),
        (rows.query_positions, rows.query_slots),
    ):
        beyond = positions >= limit
        slots.masked_fill_(beyond, NOWHERE)
        positions.masked_fill_(beyond, 0)


def shorten(block: Any, limit: int) -> None:
    """In place: no row of vLLM's CommonAttentionMetadata is longer than `limit`, for which there are blocks."""
    block.seq_lens = block.seq_lens.clamp(max=limit)
    block.max_seq_len = min(block.max_seq_len, limit)
    if block.seq_lens_cpu_upper_bound is not None:
        block.seq_lens_cpu_upper_bound = block.seq_lens_cpu_upper_bound.clamp(max=limit)
