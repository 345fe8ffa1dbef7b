"""The target's key-value cache: one row a request, written in place, rolled back without a copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


@dataclass(frozen=True)
class Place:
    """Where a pass writes: rows first_row .. first_row + len(starts) - 1, each from its own position on."""

    first_row: int
    starts: tuple[int, ...]
    length: int

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + len(self.starts))

    @property
    def end(self) -> int:
        """Positions that the pass can see, of the longest row."""
        return max(self.starts) + self.length

    def positions(self, device: torch.device) -> Tensor:
        """[rows, length] int64"""
        starts = torch.tensor(self.starts, device=device)
        return starts[:, None] + torch.arange(self.length, device=device)


class RollbackLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped
    """Keys and values [rows, kv_heads, capacity, head_dim] of one layer; position p is in slot p.

    Sliding layers use it too: they keep all positions, and the mask hides those outside the window, so that a rolled-back
    position is always still there.
    """

    FIRST_CAPACITY = 256

    def __init__(self, cache: "RollbackCache") -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Called by transformers with the first keys and values."""
        super().lazy_initialization(key_states, value_states)
        capacity = max(self.FIRST_CAPACITY, self._cache.place.end)
        self.keys = _sized(key_states, self._cache.max_rows, capacity)
        self.values = _sized(value_states, self._cache.max_rows, capacity)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [rows, kv_heads, T, head_dim] at the pass's place and return all that it can see, as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place = self._cache.place
        if place.end > self.keys.shape[-2]:
            capacity = max(place.end, 2 * self.keys.shape[-2])
            self.keys, self.values = _grown(self.keys, capacity), _grown(self.values, capacity)
        return _written(self.keys, key_states, place), _written(self.values, value_states, place)

    def get_seq_length(self, *args: Any) -> int:
        """Positions before the pass; asked by the model for its masks."""
        return max(self._cache.place.starts)


class RollbackCache(Cache):  # type: ignore[misc]
    """Layers are made as the model asks for them.

    lengths  committed positions of each row; a pass adds to them, a rollback takes away
    """

    def __init__(self, max_rows: int = 1) -> None:
        super().__init__(layer_class_to_replicate=lambda: RollbackLayer(self))
        self.max_rows = max_rows
        self.lengths = [0] * max_rows
        self.place = Place(0, (0,), 0)

    @property
    def length(self) -> int:
        """Positions of the first row."""
        return self.lengths[0]

    def begin(self, first_row: int, rows: int, length: int) -> Place:
        """Say where the next pass, over `length` tokens of `rows` rows, is to write. Their lengths grow at once."""
        span = range(first_row, first_row + rows)
        self.place = Place(first_row, tuple(self.lengths[row] for row in span), length)
        for row in span:
            self.lengths[row] += length
        return self.place

    def rollback(self, length: int, row: int = 0) -> None:
        """Forget every position of a row at or past `length`."""
        self.lengths[row] = min(self.lengths[row], length)

    def clear(self, row: int) -> None:
        """Begin a row anew."""
        self.lengths[row] = 0
        for layer in self.layers:
            layer.keys[row].zero_()  # an old NaN would reach the attention through 0 * NaN, masked or not
            layer.values[row].zero_()

    def move(self, source: int, row: int) -> None:
        """Let a row hold what another one holds."""
        if source == row:
            return
        for layer in self.layers:
            layer.keys[row].copy_(layer.keys[source])
            layer.values[row].copy_(layer.values[source])
        self.lengths[row] = self.lengths[source]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.place.starts)


def _written(states: Tensor, new: Tensor, place: Place) -> Tensor:
    """states [rows, heads, capacity, d], new [place's rows, heads, T, d] -> what the place's rows can see."""
    start, *others = place.starts
    if all(other == start for other in others):
        states[place.rows, :, start : place.end] = new
    else:
        rows = torch.arange(place.rows.start, place.rows.stop, device=states.device)[:, None]
        states[rows, :, place.positions(states.device)] = new.transpose(1, 2)
    return states[place.rows, :, : place.end]


def _sized(like: Tensor, rows: int, capacity: int) -> Tensor:
    # Zeros: a slot that a row has not written yet is masked, but 0 * NaN would reach the attention all the same.
    return like.new_zeros(rows, like.shape[1], capacity, like.shape[-1])


def _grown(old: Tensor, capacity: int) -> Tensor:
    new = _sized(old, old.shape[0], capacity)
    new[:, :, : old.shape[2]] = old
    return new


def causal_masks(place: Place, windows: Sequence[int | None], device: torch.device) -> dict[int | None, Tensor]:
    """Which positions each row's new tokens see: [rows, 1, length, place.end] bool for every window asked, None: full."""
    queries = place.positions(device)[:, None, :, None]
    keys = torch.arange(place.end, device=device)
    seen = keys <= queries
    return {window: seen if window is None else seen & (keys > queries - window) for window in set(windows)}
