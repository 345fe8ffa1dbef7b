"""KV-injected attention: a block's rows ask, the target's features and the block answer (reference, sections 2 and 3)."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from dflash2_core.config import DrafterConfig
from dflash2_core.drafter.rotary import Rotation, rotate

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [R, heads, L, d], k [R, kv_heads, L, d], v likewise) -> o [R, heads, L, d].

Who runs the drafter supplies it, since it alone knows where the context's keys and values are: `DrafterContext.attend`
when decoding, the packed blocks when training. q, k and v are the block's own, normed and rotated."""


class Projector(Protocol):
    """Features [R, T, H] to a layer's keys and values [R, kv_heads, T, d]."""

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]: ...


class DrafterAttention(nn.Module):
    """Grouped-query attention with a norm per head on q and k. Queries exist for block rows only."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        H, d = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(H, config.num_attention_heads * d, bias=False)
        self.k_proj = nn.Linear(H, config.num_key_value_heads * d, bias=False)
        self.v_proj = nn.Linear(H, config.num_key_value_heads * d, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * d, H, bias=False)
        self.q_norm = nn.RMSNorm(d, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(d, eps=config.rms_norm_eps)

    def heads(self, x: Tensor) -> Tensor:
        """[R, T, heads * d] -> [R, T, heads, d]"""
        return x.view(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim)

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """x [R, T, H], the context's features or the block's rows -> k, v [R, kv_heads, T, d]"""
        k = self.k_norm(self.heads(self.k_proj(x))).transpose(1, 2)
        return rotate(k, rotation), self.heads(self.v_proj(x)).transpose(1, 2)

    def forward(self, x: Tensor, rotation: Rotation, layer: int, attend: Attend) -> Tensor:
        """x [R, L, H], a block's normed and convolved rows -> [R, L, H]"""
        q = rotate(self.q_norm(self.heads(self.q_proj(x))).transpose(1, 2), rotation)
        k, v = self.keys_values(x, rotation)
        o: Tensor = self.o_proj(attend(layer, q, k, v).transpose(1, 2).flatten(-2))
        return o


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
    holds = (positions >= 0)[:, None, :]
    if window is None:
        return holds.expand(-1, queries.shape[1], -1)
    return holds & (queries[:, :, None] - positions[:, None, :] < window)
