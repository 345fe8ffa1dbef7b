"""What a drafter minimises (reference, section 9). Shapes: R blocks, L = B - 1 judged rows each, V ids, K candidates.

unary     CE of the row's logits
selector  CE over the K candidates, scored after the true predecessor
tv        TV = 1 - sum_b min(p_b, q_b), p the target's distribution and q the selector's: 1 - TV is the chance that
          verification accepts the draft
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash2_core.drafter import best_candidates
from dflash2_core.drafter.model import Drafter
from dflash2_core.training.blocks import Blocks

Mix = Literal["ce", "tv"]
Outside = Literal["skip", "inject"]
MIXES: dict[str, dict[str, float]] = {
    "ce": {"unary": 1.0, "selector": 1.0},
    "tv": {"unary": 0.1, "selector": 0.1, "tv": 0.9},
}


@dataclass(frozen=True)
class Objective:
    """mix: the weights of the three losses. outside: a label that is no candidate is skipped, or takes the last one's place.

    gamma: position weights w_k = exp(-(k - 1) / gamma); None: half the block size, 7 at most (7, 5, 4 for 16, 10, 8).
    """

    mix: Mix = "tv"
    outside: Outside = "skip"
    gamma: float | None = None


def position_weights(block_size: int, gamma: float | None = None) -> Tensor:
    """[B - 1] float32, the weight of rows k = 1 .. B-1."""
    k = torch.arange(1, block_size, dtype=torch.float32)
    return torch.exp(-(k - 1) / (gamma if gamma is not None else min(block_size / 2, 7.0)))


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """[R, L], [R, L] -> scalar; 0 where nothing has weight. Losses without weight may be infinite."""
    kept = losses.masked_fill(weights == 0, 0.0)
    return (kept * weights).sum() / weights.sum().clamp(min=torch.finfo(torch.float32).tiny)


def unary_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """logits [R, L, V], labels [R, L] -> [R, L]"""
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


def chosen_candidates(logits: Tensor, labels: Tensor, k: int, outside: Outside) -> Tensor:
    """[R, L, K] int64: the K best ids, with an absent label in the last place if it is to be injected."""
    candidates = best_candidates(logits.detach(), k)[1]
    if outside == "inject":
        absent = (candidates != labels[..., None]).all(-1)
        candidates[..., -1] = torch.where(absent, labels, candidates[..., -1])
    return candidates


def teacher_forced_scores(
    logits: Tensor, candidates: Tensor, gate: Tensor, predecessors: Tensor, A: Tensor, B: Tensor
) -> Tensor:
    """S_t(a, b) = U_t(b) + < A[a] * gate_t, B[b] > for the true predecessor a: [R, L, K] float32.

    logits [R, L, V], candidates [R, L, K], gate [R, L, r], predecessors [R, L], A and B [V, r]
    """
    step = A[predecessors].float() * gate.float()
    return logits.gather(-1, candidates).float() + (B[candidates].float() @ step[..., None])[..., 0]


def selector_losses(scores: Tensor, candidates: Tensor, labels: Tensor) -> Tensor:
    """[R, L, K], [R, L, K], [R, L] -> [R, L]; infinite where the label is no candidate."""
    is_label = candidates == labels[..., None]
    return -scores.log_softmax(-1).masked_fill(~is_label, -torch.inf).amax(-1)


def total_variations(scores: Tensor, candidates: Tensor, target_logits: Tensor) -> Tensor:
    """scores and candidates [R, L, K], target_logits [R, L, V] -> [R, L], from 0 to 1. The ids outside have q = 0."""
    p = target_logits.float().softmax(-1).gather(-1, candidates)
    return 1 - torch.minimum(p, scores.softmax(-1)).sum(-1)


def block_losses(
    drafter: Drafter, hidden: Tensor, logits: Tensor, target_logits: Tensor, blocks: Blocks, objective: Objective
) -> dict[str, Tensor]:
    """The parts of the loss and their `total`, scalars.

    hidden [R, L, H] and logits [R, L, V] are the drafter's for rows 1 .. B-1; target_logits [R, L, V] judge the same tokens.
    A DFlash 1 drafter has no selector: its tv is that of the whole vocabulary.
    """
    labels, selector = blocks.labels, drafter.candidate_selector
    weights = blocks.judged * position_weights(drafter.config.block_size, objective.gamma).to(logits.device)
    parts = {"unary": weighted_mean(unary_losses(logits, labels), weights)}
    if selector is None:
        everything = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
        parts["tv"] = weighted_mean(total_variations(logits.float(), everything, target_logits), weights)
    else:
        candidates = chosen_candidates(logits, labels, selector.top_k, objective.outside)
        predecessors = torch.cat((blocks.ids[:, :1], labels[:, :-1]), dim=1)
        gate = selector.hidden_projection(hidden)
        A, B = selector.predecessor_codebook, selector.successor_codebook
        scores = teacher_forced_scores(logits, candidates, gate, predecessors, A, B)
        losses = selector_losses(scores, candidates, labels)
        parts["selector"] = weighted_mean(losses, weights * losses.isfinite())
        parts["tv"] = weighted_mean(total_variations(scores, candidates, target_logits), weights)
    mix = MIXES[objective.mix]
    parts["total"] = torch.stack([mix.get(name, 0.0) * part for name, part in parts.items()]).sum()
    return parts
