"""A block's drafts of every row, and their q: the core's candidates and walk over what vLLM's model computed."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dflash2_core.drafter import best_candidates, walk


class Drafts(NamedTuple):
    """tokens [B, K] int64; sound [B] bool, False where numbers were not finite; probs [B, K, V] float32, or None."""

    tokens: Tensor
    sound: Tensor
    probs: Tensor | None


def draft(
    logits: Tensor, hidden: Tensor, selector: Any, anchors: Tensor, temperature: Tensor | None, uniforms: Tensor | None
) -> Drafts:
    """The walk through a block, of all rows at once.

    logits       [B, K, V], scaled and capped; hidden [B, K, H]
    selector     vLLM's module: hidden_projection, predecessor_codebook, successor_codebook, top_k
    anchors      [B] int64
    temperature  [B] float, 0 for greedy rows, and uniforms [B, K] float64; both None: every row takes the argmax
    Returns probs only where there are uniforms: q as it was walked, one-hot in greedy rows, zero outside the candidates.
    """
    unary, candidates = best_candidates(logits, selector.top_k)
    tokens, q = walk(
        unary,
        candidates,
        selector.hidden_projection(hidden),
        selector.predecessor_codebook,
        selector.successor_codebook,
        anchors,
        temperature=torch.zeros(len(anchors), device=logits.device) if temperature is None else temperature,
        uniforms=uniforms,
    )
    sound = q.isfinite().flatten(1).all(-1)
    if uniforms is None:
        return Drafts(tokens, sound, None)
    probs = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
    return Drafts(tokens, sound, probs.scatter_(-1, candidates, q.to(torch.float32)))


def without_drafts(drafts: Drafts, rows: Tensor) -> Drafts:
    """The same, with id 0 throughout, and a q that says so, in the rows [B] bool: what a runner takes that takes no lists."""
    tokens = drafts.tokens.masked_fill(rows[:, None], 0)
    if drafts.probs is None:
        return drafts._replace(tokens=tokens)
    certain = torch.zeros_like(drafts.probs[0, 0])
    certain[0] = 1
    return drafts._replace(tokens=tokens, probs=torch.where(rows[:, None, None], certain, drafts.probs))
