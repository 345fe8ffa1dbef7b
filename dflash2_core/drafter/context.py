"""The drafter's keys and values of committed tokens, one row a request.

Layout of a buffer's slots, per layer, [rows, kv_heads, block + capacity + 1, head_dim]:

    [ the block being drafted | the context: position p in slot p % capacity | one slot that nobody reads ]

The block's own keys are written beside the context's, so that attention reads one view and nothing is concatenated. Capacity
grows by doubling. When every layer slides it grows up to the window less one (or the positions the drafter has, where those are
fewer), and from there on the context is a ring: until then position p is in slot p whatever the capacity, so growing moves no
slot. What a context slot holds follows from the row's length alone, so that no positions are stored. The last slot takes the
rows of a padded batch that must not be kept: no shape depends on how many tokens were accepted.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash2_core.drafter.attention import Attend
from dflash2_core.drafter.health import sums
from dflash2_core.drafter.masks import Kind, Masks, own_masks

if TYPE_CHECKING:
    from dflash2_core.drafter.model import Drafter


class DrafterContext:
    """Rows 0 .. active-1 are in use; `propose` drafts for the first rows of them.

    lengths  committed positions per row: the row's anchor is at position lengths[row]
    finite   [max_rows] bool, on the device: False for a row whose target features were not; it drafts nothing until it leaves
    capacity the positions a row has slots for; limit: the capacity at which it stops growing and is a ring, None for never
    """

    FIRST_CAPACITY = 256
    capacity: int
    _keys: list[Tensor]
    _values: list[Tensor]

    def __init__(self, drafter: "Drafter", max_rows: int = 1) -> None:
        self._drafter = drafter
        self._config = drafter.config
        self._own_masks: dict[int, dict[Kind, Tensor]] = {}
        self._unseen = torch.tensor(-torch.inf, dtype=drafter.fc.weight.dtype, device=drafter.fc.weight.device)
        self.max_rows = max_rows
        self.lengths: list[int] = []
        self.finite = torch.ones(max_rows, dtype=torch.bool, device=drafter.fc.weight.device)
        windows = [window for window in self._config.layer_windows if window is not None]
        slides = len(windows) == self._config.num_hidden_layers
        self.limit = min(max(1, max(windows) - 1), self._config.max_position_embeddings) if slides else None
        self._start()

    @property
    def active(self) -> int:
        return len(self.lengths)

    @property
    def num_bytes(self) -> int:
        """What the buffers take, in bytes."""
        return sum(buffer.nbytes for buffer in (*self._keys, *self._values))

    def join(self) -> int:
        """Open a row and return its index. RuntimeError when all rows are in use."""
        if self.active == self.max_rows:
            raise RuntimeError(f"all {self.max_rows} rows of the drafter's context are in use")
        row = self.active
        for buffer in (*self._keys, *self._values):
            buffer[row].zero_()  # an old NaN would reach the attention through 0 * NaN, masked or not
        self.lengths.append(0)
        self.finite[row] = True
        return row

    def leave(self, row: int) -> None:
        """Close a row. The last row takes its index, so that the rows in use stay the first ones. IndexError: not in use.

        When no row is left, memory that grew is given back.
        """
        last = self.active - 1
        if not 0 <= row <= last:
            raise IndexError(f"row {row} of the drafter's context is not in use: {self.active} are")
        if row != last:
            for buffer in (*self._keys, *self._values):
                buffer[row].copy_(buffer[last])
            self.lengths[row] = self.lengths[last]
            self.finite[row] = self.finite[last]
        self.lengths.pop()
        if self.active == 0 and self.capacity > self.FIRST_CAPACITY:
            self._start()

    @torch.inference_mode()
    def append(self, taps: Tensor, counts: Sequence[int], *, first_row: int = 0) -> None:
        """Commit positions: the target's features of each row's next tokens (KV injection).

        taps    [n, T, n_taps * H_target], rows first_row .. first_row + n - 1 of the context
        counts  how many of the T positions each row commits; the rest is padding
        Raises ValueError for counts that the taps do not hold.
        """
        longest = max(counts, default=0)
        if len(counts) != taps.shape[0] or longest > taps.shape[1] or min(counts, default=0) < 0:
            raise ValueError(f"counts {list(counts)} for features of {taps.shape[0]} rows and {taps.shape[1]} positions")
        if longest == 0:
            return
        rows = slice(first_row, first_row + len(counts))
        lengths = self.lengths[rows]
        self._reserve(max(length + count for length, count in zip(lengths, counts, strict=True)))
        passed_over = max(0, min(counts) - self.capacity)  # by the ring, at once; broken numbers there count all the same
        if passed_over:
            self.finite[rows] &= sums(self._drafter.encode_taps(taps[:, :passed_over])).isfinite().all(-1)
        device = taps.device
        place = Place(
            lengths=torch.tensor(lengths, device=device) + passed_over,
            counts=torch.tensor(counts, device=device) - passed_over,
            keys=[keys[rows] for keys in self._keys],
            values=[values[rows] for values in self._values],
            block=self._config.block_size,
        )
        end = taps.shape[1] if self._drafter.is_compiled else longest  # a compiled step wants few shapes
        self.finite[rows] &= self._drafter.commit(taps[:, passed_over:end], place)
        self.lengths[rows] = [length + count for length, count in zip(lengths, counts, strict=True)]

    def views(self, block_lengths: Sequence[int], block: int) -> "ContextViews":
        """What one draft reads and writes of the context.

        block_lengths  of the context's first rows: the rows of each block that are real, anchor included
        block          L, the rows of the padded block
        """
        lengths = self.lengths[: len(block_lengths)]
        used = min(max(lengths), self.capacity)
        if block not in self._own_masks:
            self._own_masks[block] = own_masks(self._config, block, self.finite.device)
        masks = Masks(
            kinds=tuple(zip(self._config.layer_windows, self._config.layer_causal, strict=True)),
            own=self._own_masks[block],
            unseen=self._unseen,
            capacity=self.capacity,
            whole=min(block_lengths) == block and min(lengths) >= used,
        )
        start = self._config.block_size - block
        seen = (slice(len(lengths)), slice(None), slice(start, self._config.block_size + used))
        return ContextViews(masks, [keys[seen] for keys in self._keys], [values[seen] for values in self._values])

    def _reserve(self, length: int) -> None:
        length = self._within_limit(length)
        if length <= self.capacity:
            return
        old, block = self.capacity, self._config.block_size
        self.capacity = self._within_limit(max(2 * old, length))
        for buffers in (self._keys, self._values):
            for layer, buffer in enumerate(buffers):
                grown = self._new_buffer()
                grown[:, :, : block + old] = buffer[:, :, : block + old]
                buffers[layer] = grown

    def _within_limit(self, capacity: int) -> int:
        return capacity if self.limit is None else min(capacity, self.limit)

    def _start(self) -> None:
        self.capacity = self._within_limit(self.FIRST_CAPACITY)
        self._keys = [self._new_buffer() for _ in range(self._config.num_hidden_layers)]
        self._values = [self._new_buffer() for _ in range(self._config.num_hidden_layers)]

    def _new_buffer(self) -> Tensor:
        config, weight = self._config, self._drafter.fc.weight
        slots = config.block_size + self.capacity + 1
        shape = (self.max_rows, config.num_key_value_heads, slots, config.head_dim)
        with torch.inference_mode(False):  # an inference tensor, made as `append` grows, could not be written by `join`
            return torch.zeros(shape, dtype=weight.dtype, device=weight.device)


class Place(NamedTuple):
    """Where the features of n rows' next tokens go.

    lengths       [n] int64, positions that each row holds already
    counts        [n] int64, how many it gets
    keys, values  of each layer: the rows' whole buffers, to be written
    block         slots before the context's
    """

    lengths: Tensor
    counts: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    block: int

    def write(self, committed: Sequence[tuple[Tensor, Tensor]], T: int) -> None:
        """committed: of each layer, k and v [n, kv_heads, T, head_dim] of the positions after `lengths`."""
        capacity = self.keys[0].shape[2] - self.block - 1
        offsets, counts = torch.arange(T, device=self.counts.device), self.counts[:, None]
        live = (offsets < counts) & (offsets >= counts - capacity)
        slots = torch.where(live, (self.lengths[:, None] + offsets) % capacity, capacity) + self.block
        rows = torch.arange(len(counts), device=counts.device)[:, None]
        for layer, (k, v) in enumerate(committed):
            self.keys[layer][rows, :, slots] = k.transpose(1, 2)
            self.values[layer][rows, :, slots] = v.transpose(1, 2)


class ContextViews(NamedTuple):
    """Of each layer: keys and values [R, kv_heads, L + used slots, head_dim], the block's own first."""

    masks: Masks
    keys: list[Tensor]
    values: list[Tensor]

    def attention(self, lengths: Tensor, block_lengths: Tensor, block: int) -> Attend:
        """The attention of blocks of `block` rows over their row's context and themselves.

        lengths        [R] int64, committed positions of each row
        block_lengths  [R] int64, of each row: the rows of its block that are real
        """
        masks = self.masks.of_layers(lengths, block_lengths, self.keys[0].shape[2] - block)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys[:, :, :block] = k
            values[:, :, :block] = v
            # The heads of a group share their keys: asked as one longer query, no key is repeated in memory.
            grouped = q.reshape(*k.shape[:2], -1, q.shape[-1])
            return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=masks[layer]).reshape(q.shape)

        return attend
