"""The law that plain SGLang samples from: its penalties and its filters, in its order, for the rows of a block.

Against `dflash2_core.target_distribution` SGLang differs in this: the repetition penalty looks at the output alone and comes
after the other two; the bias comes last; top-p counts the mass of all ids, those that top-k removed included; min-p comes after
top-p. Sources: SGLang's `sampling/penaltylib`, `sampling/sampling_batch_info.py` (`apply_logits_bias`) and `layers/sampler.py`
(`top_k_top_p_min_p_sampling_from_probs_torch`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What one request's options make of the target's logits.

    ending_ids  ids that must not come before `min_new_tokens` are written
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    ending_ids: tuple[int, ...] = ()

    @property
    def need_history(self) -> bool:
        return self != Rules(ending_ids=self.ending_ids)


def penalise(logits: Tensor, rules: Rules, output: Sequence[int], drafts: Tensor) -> None:
    """logits [L+1, V] of one request's block, in place: row i comes after `output` (anchor included) and drafts[:i]."""
    rows, V = logits.shape
    before = torch.tensor(output, dtype=torch.int64)
    ids, slots = torch.cat((before, drafts)).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    in_output, in_drafts = slots.split((len(before), len(drafts)))
    S = len(ids)
    drafted = F.pad(F.one_hot(in_drafts, S).cumsum(0), (0, 0, 1, 0))[:rows]  # [L+1, S]
    count = in_output.bincount(minlength=S) + drafted
    z = logits[:, ids] - rules.frequency_penalty * count - rules.presence_penalty * (count > 0)
    r = rules.repetition_penalty
    logits[:, ids] = torch.where(count > 0, torch.where(z < 0, z * r, z / r), z)
    too_early = len(output) + torch.arange(rows) < rules.min_new_tokens
    for token in rules.ending_ids:
        if token < V:
            logits[:, token].masked_fill_(too_early, -torch.inf)


def accumulated(rules: Rules, output: Sequence[int], V: int) -> tuple[Tensor, Tensor]:
    """The same for one place after `output`, as SGLang keeps it: what is added [V], then what divides or multiplies [V]."""
    count = torch.tensor(output, dtype=torch.int64).bincount(minlength=V)
    added = -rules.frequency_penalty * count - rules.presence_penalty * (count > 0)
    if len(output) < rules.min_new_tokens:
        added[[token for token in rules.ending_ids if token < V]] = -torch.inf
    return added, torch.where(count > 0, rules.repetition_penalty, 1.0)


@dataclass(frozen=True, kw_only=True)
class Filters:
    """SGLang's sampling tensors, a row a request: temperature [B], top_k [B] int (1: greedy), top_p [B], min_p [B]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    @property
    def is_greedy(self) -> Tensor:
        """[B] bool"""
        return self.top_k <= 1


def probabilities(logits: Tensor, filters: Filters) -> Tensor:
    """logits [B, L+1, V] as penalised -> p [B, L+1, V] float32; greedy rows are one-hot at the lowest of their best ids."""
    greedy = filters.is_greedy
    p = F.one_hot(logits.argmax(-1), logits.shape[-1]).to(torch.float32)
    if not bool(greedy.all()):
        sampled = ~greedy
        chosen = Filters(
            temperature=filters.temperature[sampled],
            top_k=filters.top_k[sampled],
            top_p=filters.top_p[sampled],
            min_p=filters.min_p[sampled],
        )
        p[sampled] = _filtered(logits[sampled], chosen)
    return p


def _filtered(logits: Tensor, filters: Filters) -> Tensor:
    V = logits.shape[-1]
    k, top_p, min_p = (each.view(-1, 1, 1) for each in (filters.top_k, filters.top_p, filters.min_p))
    p = (logits.float() / filters.temperature.view(-1, 1, 1)).softmax(-1)
    if bool((k >= V).all() & (top_p >= 1).all() & (min_p <= 0).all()):
        return p
    best, ids = p.sort(dim=-1, descending=True, stable=True)
    before = best.cumsum(-1) - best  # the mass of all better ids, removed ones included
    kept = best.masked_fill((torch.arange(V) >= k) | (before > top_p), 0)
    kept = kept.masked_fill(kept < kept[..., :1] * min_p, 0)
    return torch.zeros_like(p).scatter_(-1, ids, kept / kept.sum(-1, keepdim=True))
