"""From the hidden states of SGLang's draft model to a `Proposal`, by the core's choice of candidates and its walk."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash2_core import Proposal, walk
from dflash2_core.config import DrafterConfig
from dflash2_core.drafter import best_candidates
from dflash2_core.drafter.health import sums
from dflash2_core.drafter.model import each_slot_alone, shaped_logits


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What is drafted for, a row each.

    anchors      [B] int64, the last committed tokens
    lengths      [B] int64, drafts that may be asked: 0 where the drafter's positions end
    temperature  [B] float, 0 for greedy rows
    uniforms     [B, L] float64, or None: every row takes the argmax
    """

    anchors: Tensor
    lengths: Tensor
    temperature: Tensor
    uniforms: Tensor | None


def propose(hidden: Tensor, logits: Tensor, selector: Any | None, config: DrafterConfig, rows: Rows) -> Proposal:
    """hidden [B, L, H] and the head's raw logits [B, L, >= V] of a block's rows 1.. -> drafts.

    selector  SGLang's `CandidateSelector`; None: DFlash 1, each row alone
    A row whose numbers are not finite drafts nothing.
    """
    logits = shaped_logits(logits, config)
    if selector is None:
        tokens, probs = each_slot_alone(logits, rows.temperature, rows.uniforms)
        return _of_finite_rows(Proposal(tokens=tokens, lengths=rows.lengths, probs=probs), logits.amax(-1) + sums(hidden))
    unary, candidates = best_candidates(logits, selector.top_k)
    tokens, probs = walk(
        unary,
        candidates,
        selector.hidden_projection(hidden),
        selector.predecessor_codebook,
        selector.successor_codebook,
        rows.anchors,
        temperature=rows.temperature,
        uniforms=rows.uniforms,
    )
    proposal = Proposal(tokens=tokens, lengths=rows.lengths, candidates=candidates, probs=probs)
    return _of_finite_rows(proposal, sums(probs) + sums(unary) + sums(hidden))


def _of_finite_rows(proposal: Proposal, sum_of_all: Tensor) -> Proposal:
    """sum_of_all [B, L]: finite where all numbers behind a draft are."""
    lengths = torch.where(sum_of_all.isfinite().all(-1), proposal.lengths, 0)
    return Proposal(tokens=proposal.tokens, lengths=lengths, candidates=proposal.candidates, probs=proposal.probs)
