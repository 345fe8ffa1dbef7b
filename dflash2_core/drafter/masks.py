"""What a block's rows see: by window and causality, of the context and of the block itself (reference, section 3)."""

from typing import NamedTuple

import torch
from torch import Tensor

from dflash2_core.config import DrafterConfig

Kind = tuple[int | None, bool]
"""A layer's window and whether it is causal within the block."""


def visible_in_block(length: int, window: int | None, causal: bool, device: torch.device | None = None) -> Tensor:
    """Which rows of a block see which: [query L, key L] bool, for a block of L rows."""
    rows = torch.arange(length, device=device)
    ahead = rows - rows[:, None]  # key minus query
    if causal:
        return (ahead <= 0) if window is None else (ahead <= 0) & (-ahead < window)
    return torch.ones_like(ahead, dtype=torch.bool) if window is None else ahead.abs() < window


def visible_in_context(positions: Tensor, queries: Tensor, window: int | None) -> Tensor:
    """Which context slots a block's rows see: [R, query L, slot S] bool.

    positions  [R, S] int64, the absolute position that a slot holds; negative: it holds nothing
    queries    [R, L] int64, the absolute positions of the block's rows, all past every context position
    """
    first = torch.zeros_like(queries) if window is None else (queries - (window - 1)).clamp_(min=0)
    return positions[:, None, :] >= first[:, :, None]


class Masks(NamedTuple):
    """What is known of a draft's masks before it: no tensor here depends on the lengths of rows.

    The heads of a group ask as one longer query, so that each row of the block stands in a mask once a head of a group.

    kinds     of each layer
    own       of each kind [heads of a group * L, L] bool, what whole blocks see of themselves
    unseen    [] -inf, in the dtype of the scores
    capacity  position p of the context is in slot p % capacity
    whole     no block is padded, and all rows have used the same slots
    """

    kinds: tuple[Kind, ...]
    own: dict[Kind, Tensor]
    unseen: Tensor
    capacity: int
    whole: bool

    def of_layers(self, lengths: Tensor, block_lengths: Tensor, used: int) -> list[Tensor | None]:
        """Of each layer [R, 1, heads of a group * L, L + used], to be added to the scores; None: everything is seen.

        lengths        [R] int64, committed positions of each row
        block_lengths  [R] int64, of each row: the rows of its block that are real
        used           the context's slots that take part
        """
        masks: dict[Kind, Tensor | None] = {(None, False): None} if self.whole else {}
        unlike = [kind for kind in self.own if kind not in masks]
        if unlike:
            heads, block = self._shape()
            newest, ahead = lengths[:, None] - 1, torch.arange(block, device=lengths.device)
            age = (newest - torch.arange(used, device=lengths.device)) % self.capacity
            queries = newest + 1 + ahead.repeat(heads)
            for kind in unlike:
                own = self.own[kind].expand(len(lengths), -1, -1)
                if not self.whole:
                    real = ahead < block_lengths[:, None, None]
                    itself = torch.eye(block, dtype=torch.bool, device=lengths.device).repeat(heads, 1)
                    own = own & real | itself  # a padding row sees itself: no softmax is empty
                seen = torch.cat((own, visible_in_context(newest - age, queries, kind[0])), dim=-1)
                masks[kind] = torch.where(seen, 0.0, self.unseen)[:, None]
        return [masks[kind] for kind in self.kinds]

    def _shape(self) -> tuple[int, int]:
        rows, block = next(iter(self.own.values())).shape
        return rows // block, block


def own_masks(config: DrafterConfig, block: int, device: torch.device) -> dict[Kind, Tensor]:
    """`Masks.own` of blocks of `block` rows."""
    heads = config.num_attention_heads // config.num_key_value_heads
    kinds = set(zip(config.layer_windows, config.layer_causal, strict=True))
    return {kind: visible_in_block(block, *kind, device).repeat(heads, 1) for kind in kinds}
