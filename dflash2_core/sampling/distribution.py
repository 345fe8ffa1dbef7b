"""p, the law that verification is lossless to: what plain decoding would sample each judged token from."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash2_core.errors import SamplingError
from dflash2_core.sampling.params import SamplingParams
from dflash2_core.sampling.processing import Ids, judged_dtype, processed_logits

_NUCLEUS_WIDTH = 1024
"""A nucleus is looked for among this many best ids before the whole vocabulary is sorted."""


def target_distribution(
    logits: Tensor,
    params: Sequence[SamplingParams],
    *,
    prompts: Sequence[Ids],
    outputs: Sequence[Ids],
    drafts: Sequence[Ids] | Tensor,
    lengths: Tensor | None = None,
) -> Tensor:
    """logits [B, L+1, V] -> p [B, L+1, V]; float64 and float32 are kept, half precision gives float32.

    Order, as in vLLM: `processed_logits`, then temperature, min-p, top-k, top-p, softmax. Each filter sees what the one
    before it left, renormalised. Hugging Face applies min-p after top-p, so that there top-p counts a mass that min-p
    removes; with one of the two alone nothing differs.
    At the edge of top-k and top-p the lowest of tied ids stay, so that never more than top_k remain (Hugging Face keeps
    all that tie with the k-th). A greedy row (temperature 0, top_k 1 or min_p 1) is one-hot at the lowest of its best
    ids. A row depends on its own inputs only.

    The other arguments are those of `processed_logits`. Rows past a row's length hold anything.
    Raises SamplingError as it does, and where there is no p because the logits are NaN, infinite or all forbidden: at the
    anchor, which is always judged. Further on p is NaN instead, since plain decoding may never come there; verification
    that does ends with next_token = -1. This waits for the device.
    """
    z = processed_logits(logits, params, prompts=prompts, outputs=outputs, drafts=drafts, lengths=lengths)
    z = z.to(judged_dtype(z.dtype))
    _require_finite(z[:, 0])
    greedy = [b for b, row in enumerate(params) if row.is_greedy]
    if len(greedy) == len(params):
        return _one_hot(z)
    if not greedy:
        return _sampling_distribution(z, params)
    sampled = [b for b, row in enumerate(params) if not row.is_greedy]
    p = torch.empty_like(z)
    p[greedy] = _one_hot(z[greedy])
    p[sampled] = _sampling_distribution(z[sampled], [params[b] for b in sampled])
    return p


def _require_finite(z: Tensor) -> None:
    """z [B, V]"""
    best = z.amax(-1)
    broken = ~best.isfinite()
    if bool(broken.any()):
        b = int(broken.nonzero()[0])
        raise SamplingError(
            f"Row {b} of the batch: the best of its {z.shape[-1]} logits is {best[b].item()}, so there is no distribution. "
            "nan or inf comes from the target (weights, or float16 overflowing), -inf from a logit_bias or a logits "
            "processor that forbids every id."
        )


def _one_hot(z: Tensor) -> Tensor:
    best, ids = z.max(-1, keepdim=True)
    return torch.zeros_like(z).scatter_(-1, ids, 1).masked_fill(~best.isfinite(), torch.nan)


def _sampling_distribution(z: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """z [B, L+1, V] with temperature > 0 throughout -> p."""
    limits = torch.finfo(z.dtype)
    temperature = _column([min(max(row.temperature, limits.tiny), limits.max) for row in params], z)
    z = (z - z.amax(-1, keepdim=True)) / temperature  # the best is 0: no temperature overflows it
    if any(row.min_p > 0 for row in params):
        z = z.masked_fill(z < _column([row.min_p for row in params], z).log(), -torch.inf)
    V = z.shape[-1]
    by_rank = [b for b, row in enumerate(params) if 0 < row.top_k < V]
    by_mass = [b for b, row in enumerate(params) if row.top_p < 1 and not 0 < row.top_k < V]
    for rows, keep in ((by_rank, _keep_top_k), (by_mass, _keep_top_p)):
        if len(rows) == len(params):
            z = keep(z, params)
        elif rows:
            z[rows] = keep(z[rows], [params[b] for b in rows])
    return z.softmax(-1)


def _keep_top_k(z: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """top-k, then top-p among the k: z [B, L+1, V], of which the best is 0, with the others at -inf."""
    k = _column([row.top_k for row in params], z, torch.int64)
    best = z.topk(max(row.top_k for row in params)).values  # [B, L+1, max k], descending
    sums = best.masked_fill(torch.arange(best.shape[-1], device=z.device) >= k, -torch.inf).double().exp().cumsum(-1)
    size = _nucleus_size(sums, _top_p(params, z) * sums[..., -1:])
    return _keep_best(z, best, torch.minimum(size, k))


def _keep_top_p(z: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """top-p alone: z [B, L+1, V], of which the best is 0, with the others at -inf."""
    mass = _top_p(params, z) * z.exp().sum(-1, keepdim=True, dtype=torch.float64)
    best = z.topk(min(_NUCLEUS_WIDTH, z.shape[-1])).values
    sums = best.double().exp().cumsum(-1)
    kept = _keep_best(z, best, _nucleus_size(sums, mass))
    if best.shape[-1] < z.shape[-1] and bool((wide := (sums[..., -1:] < mass).squeeze(-1)).any()):
        best = z[wide].sort(descending=True).values
        kept[wide] = _keep_best(z[wide], best, _nucleus_size(best.double().exp().cumsum(-1), mass[wide]))
    return kept


def _nucleus_size(sums: Tensor, mass: Tensor) -> Tensor:
    """The least number of best ids [.., 1] that holds `mass` [.., 1]; sums [.., W] of the best, float64 like mass."""
    return ((sums[..., :-1] < mass).sum(-1, keepdim=True) + 1).clamp(max=sums.shape[-1])


def _keep_best(z: Tensor, best: Tensor, size: Tensor) -> Tensor:
    """z [.., V] with all but its `size` [.., 1] best ids at -inf; of tied ids the lowest stay. best [.., W]: of z."""
    edge = best.gather(-1, size - 1)
    keep = z >= edge
    surplus = (keep.sum(-1, keepdim=True) > size) & (edge > -torch.inf)
    if bool(surplus.any()):
        better, tied = z > edge, z == edge
        keep = better | (tied & (tied.cumsum(-1) <= size - better.sum(-1, keepdim=True)))
    return z.masked_fill(~keep, -torch.inf)


def _top_p(params: Sequence[SamplingParams], z: Tensor) -> Tensor:
    """[B, 1, 1] float64; off is infinite, so that no rounded sum ever reaches it."""
    return _column([row.top_p if row.top_p < 1 else torch.inf for row in params], z, torch.float64)


def _column(values: Sequence[float], z: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """One value a row of z, [B, 1, 1]."""
    return torch.tensor(values, dtype=dtype or z.dtype, device=z.device)[:, None, None]
