"""What a drafter minimises (reference, section 9). Shapes: R blocks, L = B - 1 judged rows each, V ids, K candidates.

unary     CE of the row's logits: against the text, or against p
selector  CE over the K candidates, scored after the true predecessor: likewise
tv        TV = 1 - sum_b min(p_b, q_b), p the target's distribution and q the selector's: 1 - TV is the chance that
          verification accepts the draft
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash2_core.drafter import best_candidates
from dflash2_core.drafter.model import Drafter
from dflash2_core.errors import Dflash2Error
from dflash2_core.training.blocks import Blocks

Mix = Literal["ce", "tv", "ce-tv"]
Outside = Literal["skip", "inject"]
Teacher = Literal["text", "target"]
CE = {"unary": 1.0, "selector": 1.0, "tv": 0.0}
TV = {"unary": 0.1, "selector": 0.1, "tv": 0.9}


@dataclass(frozen=True)
class Objective:
    """mix      the weights of the three losses; ce-tv goes from the one to the other over the run, since TV hardly slopes where
             q and p have little in common
    teacher  what both CEs learn from: the text's own token, or all of p, which tells more a token and suits sampling
    outside  a label that is no candidate is skipped, or takes the last one's place
    gamma    position weights w_k = exp(-(k - 1) / gamma); None: half the block size, 7 at most (7, 5, 4 for 16, 10, 8)
    """

    mix: Mix = "tv"
    teacher: Teacher = "text"
    outside: Outside = "skip"
    gamma: float | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None and not 0 < self.gamma < math.inf:
            raise Dflash2Error(f"gamma is {self.gamma}; it must be finite and above 0")

    def weights(self, progress: float) -> dict[str, float]:
        """Of the losses, at `progress` 0 .. 1 of the run."""
        share = {"ce": 0.0, "tv": 1.0, "ce-tv": min(1.0, max(0.0, progress))}[self.mix]
        return {name: (1 - share) * CE[name] + share * TV[name] for name in CE}


def position_weights(block_size: int, gamma: float | None = None) -> Tensor:
    """[B - 1] float32, the weight of rows k = 1 .. B-1."""
    k = torch.arange(1, block_size, dtype=torch.float32)
    return torch.exp(-(k - 1) / (gamma if gamma is not None else min(block_size / 2, 7.0)))


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """[R, L], [R, L] -> scalar; 0 where nothing has weight. Losses without weight may be infinite."""
    kept = losses.masked_fill(weights == 0, 0.0)
    return (kept * weights).sum() / weights.sum().clamp(min=torch.finfo(torch.float32).tiny)


def unary_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """logits [R, L, V] and labels, ids [R, L] or distributions [R, L, V] -> [R, L]"""
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(0, 1), reduction="none").view(logits.shape[:2])


def soft_selector_losses(scores: Tensor, p: Tensor) -> Tensor:
    """scores [R, L, K], the target's p of the candidates [R, L, K] -> [R, L]: the mass outside teaches nothing."""
    return -(p * scores.log_softmax(-1)).sum(-1)


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


def total_variations(scores: Tensor, p: Tensor) -> Tensor:
    """scores and the target's p of the candidates [R, L, K] -> [R, L], from 0 to 1. The ids outside have q = 0."""
    return 1 - torch.minimum(p, scores.softmax(-1)).sum(-1)


def block_losses(
    drafter: Drafter,
    hidden: Tensor,
    logits: Tensor,
    target_logits: Tensor,
    blocks: Blocks,
    objective: Objective,
    progress: float = 1.0,
) -> dict[str, Tensor]:
    """The parts of the loss and their `total` at `progress` 0 .. 1 of the run, scalars.

    hidden [R, L, H] and logits [R, L, V] are the drafter's for rows 1 .. B-1; target_logits [R, L, V] judge the same tokens.
    A DFlash 1 drafter has no selector: its tv is that of the whole vocabulary.
    """
    labels, selector = blocks.labels, drafter.candidate_selector
    weights = blocks.judged * position_weights(drafter.config.block_size, objective.gamma).to(logits.device)
    p = target_logits.float().softmax(-1)
    soft = objective.teacher == "target"
    parts = {"unary": weighted_mean(unary_losses(logits, p if soft else labels), weights)}
    if selector is None:
        parts["tv"] = weighted_mean(total_variations(logits.float(), p), weights)
    else:
        candidates = chosen_candidates(logits, labels, selector.top_k, objective.outside)
        predecessors = torch.cat((blocks.ids[:, :1], labels[:, :-1]), dim=1)
        gate = selector.hidden_projection(hidden)
        A, B = selector.predecessor_codebook, selector.successor_codebook
        scores = teacher_forced_scores(logits, candidates, gate, predecessors, A, B)
        p = p.gather(-1, candidates)
        losses = soft_selector_losses(scores, p) if soft else selector_losses(scores, candidates, labels)
        parts["selector"] = weighted_mean(losses, weights * losses.isfinite())
        parts["tv"] = weighted_mean(total_variations(scores, p), weights)
    of_total = objective.weights(progress)
    parts["total"] = torch.stack([of_total[name] * part for name, part in parts.items()]).sum()
    return parts
