"""Lossless verification: which drafts stand, and the one token that follows them.

Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding (2023), Algorithm 1; Chen et al.:
Accelerating Large Language Model Decoding with Speculative Sampling (2023), Algorithm 2. Draft d_k stands at position
s + k, s being the anchor's; row i of p (or of the logits) judges d_{i+1}. Nothing here makes the host wait for an
accelerator; hence a broken distribution (NaN, or without mass) is reported by next_token = -1, never by an id.
"""

import torch
from torch import Tensor

from dflash2_core.proposal import Proposal, Verdict
from dflash2_core.sampling.streams import Purpose, RandomStreams

BROKEN = -1
"""The next_token of a row whose distribution is NaN or empty. No vocabulary has this id: raise or drop."""


def verify_greedy(proposal: Proposal, logits: Tensor) -> Verdict:
    """Accept while the draft is the target's argmax; then the argmax of the first row that differs, or of the last row.

    logits  [B, L+1, V], as processed for each row. Ties go to the lowest id. Rows past a row's length are never read.
    A judged row whose best logit is NaN or infinite ends the run with next_token = -1.
    """
    best, ids = logits.max(-1)  # [B, L+1]
    ids = torch.where(best.abs() < torch.inf, ids, BROKEN)  # which no NaN is either
    n = _accepted_run(proposal.tokens == ids[:, :-1], proposal.lengths)
    return Verdict(num_accepted=n, next_token=ids.gather(1, n[:, None]).squeeze(1))


def verify_sampled(proposal: Proposal, probs: Tensor, streams: RandomStreams, positions: Tensor) -> Verdict:
    """Accept d while u q(d) < p(d); then recover from max(p - q, 0) over all ids, or take the bonus from the last row.

    probs      [B, L+1, V] float, p as `target_distribution` gives it; greedy rows are one-hot
    streams    draws d_k's verdict at (s + k, accept) and the next token at (s + n + 1, recover) or (s + n + 1, bonus)
    positions  [B] int64, s, absolute, of the anchors; on the CPU (cheaper: the draws are made there) or with `probs`
    """
    lengths = proposal.lengths
    ahead = positions[:, None] + torch.arange(1, probs.shape[1] + 1, device=positions.device)  # s + 1 .. s + L + 1

    def uniforms(purpose: Purpose) -> Tensor:  # for every n there can be, since only the accelerator knows which it is
        return streams.uniform(ahead, purpose).to(probs.device, non_blocking=True)

    p, q = _at(probs[:, :-1], proposal.tokens), _draft_probability(proposal)  # [B, L]
    n = _accepted_run(uniforms(Purpose.ACCEPT)[:, :-1] * q < p, lengths)
    rejected = n < lengths
    u = torch.where(rejected[:, None], uniforms(Purpose.RECOVER), uniforms(Purpose.BONUS)).gather(1, n[:, None])
    return Verdict(num_accepted=n, next_token=draw(_next_distribution(proposal, probs, n, rejected), u.squeeze(1)))


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse CDF: probs [.., V] float >= 0, not necessarily of sum 1, uniforms [..] in [0, 1) -> ids [..] int64.

    Sums in float64. An id without probability is never drawn, not even where a device's parallel sum moves by an ulp at
    it, or where u * total reaches the total. A row that is NaN or without mass gives -1.
    """
    sums = probs.cumsum(-1, dtype=torch.float64)
    cdf = sums.masked_fill(~(probs > 0), 0)
    total = cdf.amax(-1)
    threshold = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    ids = (cdf > threshold[..., None]).to(torch.uint8).argmax(-1)
    return ids.masked_fill(~(sums[..., -1].isfinite() & (total > 0)), BROKEN)


def _accepted_run(accepted: Tensor, lengths: Tensor) -> Tensor:
    """accepted [B, L] bool -> n [B] int64, the drafts before the first that fails or is padding."""
    live = torch.arange(accepted.shape[1], device=lengths.device) < lengths[:, None]
    return (accepted & live).cumprod(-1, dtype=torch.int64).sum(-1)


def _draft_probability(proposal: Proposal) -> Tensor:
    """q(d_k) [B, L]."""
    if proposal.probs is None:
        return torch.ones_like(proposal.tokens, dtype=torch.float64)
    if proposal.candidates is None:
        return _at(proposal.probs, proposal.tokens)
    taken = proposal.candidates == proposal.tokens[..., None]
    return torch.where(taken, proposal.probs, 0).sum(-1)


def _at(probs: Tensor, tokens: Tensor) -> Tensor:
    """probs [B, L, V] at tokens [B, L]; padding may hold any number and reads something that nobody uses."""
    return probs.gather(-1, tokens.clamp(0, probs.shape[-1] - 1)[..., None]).squeeze(-1)


def _next_distribution(proposal: Proposal, probs: Tensor, n: Tensor, rejected: Tensor) -> Tensor:
    """[B, V], up to a factor: max(p - q, 0) of row n where draft n + 1 was rejected, else p of row n."""
    p = _row(probs, n)
    if proposal.tokens.shape[1] == 0:
        return p
    residual = _subtract_draft_distribution(p, proposal, n.clamp(max=proposal.tokens.shape[1] - 1), rejected).clamp(min=0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)


def _subtract_draft_distribution(p: Tensor, proposal: Proposal, row: Tensor, rejected: Tensor) -> Tensor:
    """p [B, V] - q of `row` [B], scattered from the candidates into the vocabulary; p where nothing was rejected."""
    if proposal.probs is None:
        candidates, q = _row(proposal.tokens[..., None], row), p.new_ones(len(p), 1)
    elif proposal.candidates is None:
        return p - torch.where(rejected[:, None], _row(proposal.probs, row), 0).to(p.dtype)
    else:
        candidates, q = _row(proposal.candidates, row), _row(proposal.probs, row)
    candidates = torch.where(rejected[:, None], candidates, 0)  # past a row's length there is padding
    q = torch.where(rejected[:, None], q, 0).to(p.dtype)
    return p.scatter_add(-1, candidates, -q)


def _row(x: Tensor, row: Tensor) -> Tensor:
    """x [B, R, W], row [B] -> [B, W]."""
    return x.gather(1, row[:, None, None].expand(-1, 1, x.shape[-1])).squeeze(1)
