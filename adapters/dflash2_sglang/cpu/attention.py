"""A block of rows behind a request's cached positions, for SGLang's torch_native backend, which knows only prefill and decode.

SGLang sends two kinds of such blocks through `ForwardMode.TARGET_VERIFY`: the target's, which are causal, and the drafter's,
causal or not, with a sliding window or without.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash2_core.drafter.masks import visible_in_block, visible_in_context


def block_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    context_slots: Tensor,
    context_positions: Tensor,
    block_slots: Tensor,
    *,
    lengths: Tensor,
    window: int | None,
    causal: bool,
    scale: float,
) -> Tensor:
    """Each row attends to its request's context and to its own block.

    q                  [N, B, heads, D], blocks of B rows of N requests, at positions lengths .. lengths + B - 1
    keys, values       [slots, kv_heads, D or Dv], the whole cache, the block's own included
    context_slots      [N, S] int64, where context positions are; context_positions [N, S] int64, negative for padding
    block_slots        [N, B] int64
    lengths            [N] int64, committed positions
    window, causal     which keys a row sees: see `dflash2_core.drafter.masks`; window None: all
    Returns [N, B, heads, Dv] in q's dtype.
    """
    N, B, heads, _ = q.shape
    group = heads // keys.shape[1]
    slots = torch.cat((context_slots, block_slots), dim=1)
    k, v = (cache[slots].to(q.dtype).transpose(1, 2) for cache in (keys, values))  # [N, kv_heads, S + B, D]
    queries = lengths[:, None] + torch.arange(B)
    own = visible_in_block(B, window, causal).expand(N, -1, -1)
    seen = torch.cat((visible_in_context(context_positions, queries, window), own), dim=-1)
    # The heads of a group share their keys: asked as one longer query, no key is repeated in memory.
    asked = q.view(N, B, -1, group, q.shape[-1]).permute(0, 2, 3, 1, 4).reshape(N, -1, group * B, q.shape[-1])
    told = F.scaled_dot_product_attention(asked, k, v, attn_mask=seen.repeat(1, group, 1)[:, None], scale=scale)
    return told.view(N, -1, group, B, v.shape[-1]).permute(0, 3, 1, 2, 4).reshape(N, B, heads, v.shape[-1])


def context_positions(lengths: Tensor, window: int | None) -> Tensor:
    """[N, S] int64: the positions that any row of a block behind `lengths` sees, the newest first; negative: none."""
    longest = int(lengths.max())
    S = longest if window is None else min(longest, window - 1)
    return lengths[:, None] - 1 - torch.arange(S)


def forward_extend(
    original: Callable[..., Tensor],
    backend: Any,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
    **rest: Any,
) -> Tensor:
    """Around `TorchNativeAttnBackend.forward_extend`: blocks here, prefill as ever.

    q  [tokens, heads * D]; returns [tokens, heads * Dv]
    """
    if not forward_batch.forward_mode.is_target_verify():
        return original(backend, q, k, v, layer, forward_batch, save_kv_cache, **rest)
    from sglang.srt.layers.radix_attention import AttentionType
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    pool = backend.token_to_kv_pool
    if save_kv_cache and k is not None and v is not None:
        pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, backend.swa_out_cache_loc), k, v)
    lengths = forward_batch.seq_lens.long()
    window = None if layer.sliding_window_size is None or layer.sliding_window_size < 0 else layer.sliding_window_size + 1
    positions = context_positions(lengths, window)
    table = backend.req_to_token_pool.req_to_token[forward_batch.req_pool_indices]
    told = block_attention(
        q.view(len(lengths), -1, layer.tp_q_head_num, layer.qk_head_dim),
        pool.get_key_buffer(layer.layer_id),
        pool.get_value_buffer(layer.layer_id),
        table.gather(1, positions.clamp(min=0)).long(),
        positions,
        forward_batch.out_cache_loc.view(len(lengths), -1),
        lengths=lengths,
        window=window,
        causal=layer.attn_type != AttentionType.ENCODER_ONLY,
        scale=layer.scaling,
    )
    return told.reshape(len(q), -1)
