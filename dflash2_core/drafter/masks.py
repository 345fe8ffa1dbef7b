"""What a block's rows see: by window and causality, of the context and of the block itself (reference, section 3)."""

from collections.abc import Sequence

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


class Masks:
    """The attention masks of drafts, in a dtype and on a device; what does not change between them is kept.

    The heads of a group ask as one longer query, so that each row of the block stands in a mask once a head of a group.
    """

    def __init__(self, config: DrafterConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._kinds: list[Kind] = list(zip(config.layer_windows, config.layer_causal, strict=True))
        self._heads = config.num_attention_heads // config.num_key_value_heads
        self._device = device
        self._unseen = torch.tensor(-torch.inf, dtype=dtype, device=device)
        self._seen = torch.zeros_like(self._unseen)
        self._of_blocks: dict[tuple[int, Kind], Tensor] = {}

    def of_layers(self, lengths: Sequence[int], capacity: int, block_lengths: Sequence[int], block: int) -> list[Tensor | None]:
        """Of each layer [R, 1, heads of a group * L, L + used slots], to be added to the scores; None: everything is seen.

        lengths        committed positions of each row; position p is in slot p % capacity
        block_lengths  of each row: the rows of its block that are real
        block          L, the rows of the padded block
        """
        used = min(max(lengths), capacity)
        whole = min(block_lengths) == block and min(lengths) >= used
        masks: dict[Kind, Tensor | None] = {(None, False): None} if whole else {}
        if not masks.keys() >= set(self._kinds):
            newest = torch.tensor(lengths, device=self._device)[:, None] - 1
            age = (newest - torch.arange(used, device=self._device)) % capacity
            queries = newest + torch.arange(1, block + 1, device=self._device).repeat(self._heads)
            for kind in set(self._kinds) - masks.keys():
                context = visible_in_context(newest - age, queries, kind[0])
                seen = torch.cat((self._own(kind, block, block_lengths), context), dim=-1)
                masks[kind] = torch.where(seen, self._seen, self._unseen)[:, None]
        return [masks[kind] for kind in self._kinds]

    def _own(self, kind: Kind, block: int, block_lengths: Sequence[int]) -> Tensor:
        """[R, heads * L, L] bool"""
        own = self._of_blocks.get((block, kind))
        if own is None:
            own = visible_in_block(block, *kind, self._device).repeat(self._heads, 1)
            self._of_blocks[block, kind] = own
        if min(block_lengths) == block:
            return own.expand(len(block_lengths), -1, -1)
        real = torch.arange(block, device=self._device) < torch.tensor(block_lengths, device=self._device)[:, None, None]
        itself = torch.eye(block, dtype=torch.bool, device=self._device).repeat(self._heads, 1)
        return own & real | itself  # a padding row sees itself: no softmax is empty
