"""The drafter's keys and values of the committed tokens of one request."""

from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from mlx_backend.drafter import MlxDrafter


class MlxContext:
    """keys, values: of each layer [kv_heads, T, head_dim]; length: T, which is the position of the anchor.

    What a window hides stays in memory: cutting it off is the caller's to add where texts are long.
    """

    def __init__(self, drafter: "MlxDrafter") -> None:
        self._drafter = drafter
        self.length = 0
        self.keys: list[mx.array] = []
        self.values: list[mx.array] = []

    def append(self, taps: mx.array) -> None:
        """taps [n, n_taps * H_target] of the next n committed tokens, in the config's order."""
        made = self._drafter.context_keys_values(taps, self.length)
        if not self.keys:
            self.keys, self.values = [k for k, _ in made], [v for _, v in made]
        else:
            self.keys = [mx.concatenate([old, k], axis=1) for old, (k, _) in zip(self.keys, made, strict=True)]
            self.values = [mx.concatenate([old, v], axis=1) for old, (_, v) in zip(self.values, made, strict=True)]
        self.length += taps.shape[0]
        mx.eval(*self.keys, *self.values)
