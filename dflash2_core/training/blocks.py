"""Random anchors and their blocks: what a drafter reads in training, and who may see whom.

A document's N blocks lie side by side as N rows of the drafter's batch, so that no convolution crosses from one to another;
the attention joins them to their document's context: block [tok[a], MASK x (B-1)] at positions a .. a+B-1 sees the context
positions t < a of its own document, inside the layer's window, and itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash2_core.config import DrafterConfig
from dflash2_core.drafter.attention import Attend
from dflash2_core.drafter.masks import visible_in_block, visible_in_context
from dflash2_core.training.documents import Batch


@dataclass(frozen=True)
class Blocks:
    """N blocks of each of D documents.

    anchors    [D, N] int64, positions
    ids        [D * N, B] int64, the drafter's input
    positions  [D * N, B] int64
    labels     [D * N, B - 1] int64, tok[a + k] for k = 1 .. B-1; 0 where there is none
    judged     [D * N, B - 1] bool, where there is a label: not past the document's end, not of a row without an anchor
    """

    anchors: Tensor
    ids: Tensor
    positions: Tensor
    labels: Tensor
    judged: Tensor


def sample_anchors(batch: Batch, count: int, generator: torch.Generator) -> Tensor:
    """[D, count] int64: distinct positions of each response with a token after them; -1 where a response has too few."""
    D, T = batch.tokens.shape
    positions = torch.arange(T, device=batch.tokens.device)
    eligible = (positions >= batch.prompt_lengths[:, None]) & (positions < batch.lengths[:, None] - 1)
    keys = torch.rand(D, T, generator=generator).to(eligible.device).masked_fill(~eligible, -1.0)
    best, anchors = keys.topk(min(count, T), dim=1)
    return F.pad(anchors.masked_fill(best < 0, -1), (0, max(0, count - T)), value=-1)


def all_anchors(batch: Batch) -> Tensor:
    """[D, N] int64: every position of each response with a token after it, in order; -1 past the last."""
    longest = int((batch.lengths - 1 - batch.prompt_lengths).max())
    anchors = batch.prompt_lengths[:, None] + torch.arange(longest, device=batch.tokens.device)
    return anchors.masked_fill(anchors >= batch.lengths[:, None] - 1, -1)


def make_blocks(batch: Batch, anchors: Tensor, block_size: int, mask_token_id: int) -> Blocks:
    """The blocks at `anchors` [D, N]; an anchor of -1 gives a block at position 0 of which nothing is judged."""
    starts = anchors.clamp(min=0)
    positions = starts[..., None] + torch.arange(block_size, device=anchors.device)  # [D, N, B]
    inside = (positions < batch.lengths[:, None, None]) & (anchors >= 0)[..., None]
    tokens = batch.tokens.gather(1, positions.clamp(max=batch.tokens.shape[1] - 1).flatten(1)).view_as(positions)
    ids = torch.full_like(tokens, mask_token_id)
    ids[..., 0] = tokens[..., 0]
    return Blocks(
        anchors=anchors,
        ids=ids.flatten(0, 1),
        positions=positions.flatten(0, 1),
        labels=tokens[..., 1:].masked_fill(~inside[..., 1:], 0).flatten(0, 1),
        judged=inside[..., 1:].flatten(0, 1),
    )


def block_attention(config: DrafterConfig, context: list[tuple[Tensor, Tensor]], context_length: int, blocks: Blocks) -> Attend:
    """The drafter's attention over packed blocks.

    context         of each layer: k and v [D, kv_heads, T, d] of all documents' positions 0 .. T-1
    context_length  T
    Padding positions need no mask of their own: they lie past every anchor of their document.
    """
    (D, N), B = blocks.anchors.shape, config.block_size
    device = blocks.anchors.device
    groups = config.num_attention_heads // config.num_key_value_heads
    queries = blocks.positions.view(D, N * B)
    before = torch.arange(context_length, device=device) < blocks.anchors[..., None]  # [D, N, T]

    def mask(window: int | None, causal: bool) -> Tensor:
        slots = torch.arange(context_length, device=device).expand(D, -1)
        seen = visible_in_context(slots, queries, window) & before.repeat_interleave(B, dim=1)
        own = torch.kron(torch.eye(N, device=device), visible_in_block(B, window, causal, device)).bool()
        return torch.cat((seen, own.expand(D, -1, -1)), dim=-1).repeat(1, groups, 1)[:, None]

    kinds = list(zip(config.layer_windows, config.layer_causal, strict=True))
    masks = {kind: mask(*kind) for kind in set(kinds)}

    def packed(x: Tensor) -> Tensor:
        """[D * N, heads, B, d] -> [D, heads, N * B, d]"""
        heads, _, d = x.shape[1:]
        return x.view(D, N, heads, B, d).transpose(1, 2).reshape(D, heads, N * B, d)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context_k, context_v = context[layer]
        # The heads of a group share their keys: asked as one longer query, no key is repeated in memory.
        (heads, _, d), kv_heads = q.shape[1:], k.shape[1]
        grouped = packed(q).view(D, kv_heads, groups * N * B, d)
        keys, values = torch.cat((context_k, packed(k)), dim=2), torch.cat((context_v, packed(v)), dim=2)
        o = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=masks[kinds[layer]])
        return o.view(D, heads, N, B, d).transpose(1, 2).reshape(D * N, heads, B, d)

    return attend
