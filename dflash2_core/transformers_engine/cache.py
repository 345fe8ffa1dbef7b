"""The target's key-value cache: written in place, rolled back without a copy."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class RollbackLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped
    """Keys and values [B, kv_heads, capacity, head_dim] of which the first `length` positions count.

    Sliding layers use it too: they keep all positions, and the model's mask hides those outside the window, so that a
    rolled-back position is always still there.
    """

    FIRST_CAPACITY = 256

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Called by transformers with the first keys and values."""
        super().lazy_initialization(key_states, value_states)
        capacity = max(self.FIRST_CAPACITY, key_states.shape[-2])
        self.keys = _sized(key_states, capacity)
        self.values = _sized(value_states, capacity)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [B, kv_heads, T, head_dim] and return all keys and values so far, as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self.keys = _grown(self.keys, self.length, max(end, 2 * self.keys.shape[-2]))
            self.values = _grown(self.values, self.length, max(end, 2 * self.values.shape[-2]))
        self.keys[..., self.length : end, :] = key_states
        self.values[..., self.length : end, :] = value_states
        self.length = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def get_seq_length(self, *args: Any) -> int:
        """Positions that count; asked by the model for its masks and positions."""
        return self.length


class RollbackCache(Cache):  # type: ignore[misc]
    """One RollbackLayer a layer, made as the model asks for them."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RollbackLayer)

    @property
    def length(self) -> int:
        """Positions held."""
        return self.layers[0].length if self.layers else 0

    def rollback(self, length: int) -> None:
        """Forget every position at or past `length`."""
        for layer in self.layers:
            layer.length = min(layer.length, length)


def _sized(like: Tensor, capacity: int) -> Tensor:
    return torch.empty(*like.shape[:-2], capacity, like.shape[-1], dtype=like.dtype, device=like.device)


def _grown(old: Tensor, length: int, capacity: int) -> Tensor:
    new = _sized(old, capacity)
    new[..., :length, :] = old[..., :length, :]
    return new
