"""What the target remembers: one row a request, written in place.

Keys and values are rolled back by their length alone. A recurrent state holds all that went through it, so a pass that may be
taken back is preceded by a copy of it, and the tokens that are kept go through the layer once more (`rewind`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionCacheLayerMixin

LINEAR = "linear_attention"


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


class RecurrentLayer(LinearAttentionCacheLayerMixin):  # type: ignore[misc]
    """The states of one linear-attention layer, as `transformers` asks for them: the last inputs of its convolution
    [rows, channels, kernel] and the recurrent state [rows, ...]. A row that has read nothing has zeros."""

    def __init__(self, cache: "RollbackCache") -> None:
        super().__init__()
        self._cache = cache
        self.conv: Tensor | None = None
        self.recurrent: Tensor | None = None
        self._copies: tuple[Tensor | None, Tensor | None] = (None, None)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: each update makes what it needs."""

    def update_conv_state(self, new: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any) -> Tensor:
        """new [rows, channels, T] -> the inputs held so far and these; the last `conv_kernel_size` are held from now on."""
        if self.conv is None:
            kernel = new.shape[-1] if conv_kernel_size is None else conv_kernel_size
            self.conv = new.new_zeros(self._cache.max_rows, new.shape[1], kernel)
        held = self.conv[self._cache.place.rows]
        whole = torch.cat((held, new), dim=-1)
        held.copy_(whole[..., -held.shape[-1] :])
        return whole

    def update_recurrent_state(self, state: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        """state [rows, ...] after the pass."""
        if self.recurrent is None:
            self.recurrent = state.new_zeros(self._cache.max_rows, *state.shape[1:])
        return self.recurrent[self._cache.place.rows].copy_(state)

    def held(self, states: Tensor | None) -> Tensor | None:
        """What the pass's rows hold, as a view."""
        return None if states is None else states[self._cache.place.rows]

    def remember(self) -> None:
        """Copy the pass's rows before it."""
        held = self.held(self.conv), self.held(self.recurrent)
        self._copies = tuple(None if states is None else states.clone() for states in held)  # type: ignore[assignment]

    def restore(self, rows: slice, of_pass: slice) -> None:
        """Put back what was remembered for these rows of the cache, which were those rows of the pass."""
        for states, copies in zip((self.conv, self.recurrent), self._copies, strict=True):
            if states is not None:  # without a copy it was the row's first pass
                states[rows] = 0 if copies is None else copies[of_pass]


class RollbackCache(Cache):  # type: ignore[misc]
    """max_rows  requests at once
    kinds       of each layer, where the model names them; else layers are made as it asks for them, all with keys and values
    lengths     committed positions of each row; a pass adds to them, a rollback takes away
    """

    def __init__(self, max_rows: int = 1, kinds: Sequence[str] = ()) -> None:
        self.max_rows = max_rows
        self.lengths = [0] * max_rows
        self.place = Place(0, (0,), 0)
        if LINEAR in kinds:
            super().__init__(layers=[(RecurrentLayer if kind == LINEAR else RollbackLayer)(self) for kind in kinds])
        else:
            super().__init__(layer_class_to_replicate=lambda: RollbackLayer(self))

    @property
    def length(self) -> int:
        """Positions of the first row."""
        return self.lengths[0]

    @property
    def recurrent_layers(self) -> list[RecurrentLayer]:
        return [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]

    def begin(self, first_row: int, rows: int, length: int) -> Place:
        """Say where the next pass, over `length` tokens of `rows` rows, is to write. Their lengths grow at once."""
        span = range(first_row, first_row + rows)
        self.place = Place(first_row, tuple(self.lengths[row] for row in span), length)
        for row in span:
            self.lengths[row] += length
        return self.place

    def rollback(self, length: int, row: int = 0) -> None:
        """Forget every position of a row at or past `length`. Recurrent states do not go back: see `Target.rewind`."""
        self.lengths[row] = min(self.lengths[row], length)

    def clear(self, row: int) -> None:
        """Begin a row anew."""
        self.lengths[row] = 0
        for states in self._states():
            states[row].zero_()  # an old NaN would reach the attention through 0 * NaN, masked or not

    def move(self, source: int, row: int) -> None:
        """Let a row hold what another one holds."""
        if source == row:
            return
        for states in self._states():
            states[row].copy_(states[source])
        self.lengths[row] = self.lengths[source]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.place.starts)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        layer: RecurrentLayer = self.layers[layer_idx]
        return layer.held(layer.conv)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        layer: RecurrentLayer = self.layers[layer_idx]
        return layer.held(layer.recurrent)

    def _states(self) -> Iterator[Tensor]:
        for layer in self.layers:
            pair = (layer.conv, layer.recurrent) if isinstance(layer, RecurrentLayer) else (layer.keys, layer.values)
            yield from (states for states in pair if states is not None)


def _written(states: Tensor, new: Tensor, place: Place) -> Tensor:
    """states [rows, heads, capacity, d], new [place's rows, heads, T, d] -> what the place's rows can see."""
    seen = states[place.rows, :, : place.end]
    start, *others = place.starts
    if all(other == start for other in others):
        seen[:, :, start:] = new
    else:
        rows = torch.arange(len(place.starts), device=states.device)[:, None]
        seen[rows, :, place.positions(states.device)] = new.transpose(1, 2)
    return seen


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
