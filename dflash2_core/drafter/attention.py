"""KV-injected attention: a block's rows ask, the target's features and the block answer (reference, sections 2 and 3)."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
        H, d = config.hidden_size, config.head_dim
        self.head_dim, self.heads, self.kv_heads = d, config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(H, config.num_attention_heads * d, bias=False)
        self.k_proj = nn.Linear(H, config.num_key_value_heads * d, bias=False)
        self.v_proj = nn.Linear(H, config.num_key_value_heads * d, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * d, H, bias=False)
        self.q_norm = nn.RMSNorm(d, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(d, eps=config.rms_norm_eps)

    def keys_values(self, features: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """The context's features [R, T, H] -> k, v [R, kv_heads, T, d]"""
        k = self.k_norm(self._heads(self.k_proj(features))).transpose(1, 2)
        return rotate(k, rotation), self._heads(self.v_proj(features)).transpose(1, 2)

    def forward(self, x: Tensor, rotation: Rotation, layer: int, attend: Attend) -> Tensor:
        """x [R, L, H], a block's normed and convolved rows -> [R, L, H]"""
        # Norm and rotation of q and k are many small steps: both take them together.
        qk = self._heads(torch.cat((self.q_proj(x), self.k_proj(x)), dim=-1))
        scale = torch.cat((self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)))
        qk = F.rms_norm(qk, (self.head_dim,), eps=self.q_norm.eps) * scale
        q, k = torch.split(rotate(qk.transpose(1, 2), rotation), [self.heads, self.kv_heads], dim=1)
        v = self._heads(self.v_proj(x)).transpose(1, 2)
        o: Tensor = self.o_proj(attend(layer, q, k, v).transpose(1, 2).flatten(-2))
        return o

    def _heads(self, x: Tensor) -> Tensor:
        """[R, T, heads * d] -> [R, T, heads, d]"""
        return x.view(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim)
