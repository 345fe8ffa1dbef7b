"""How well a drafter drafts for held-out documents that the target wrote greedily.

Where the target's text is greedy, it accepts a draft exactly when the draft is the text. So the accepted run at every
anchor can be read from one pass over all of them, and greedy decoding is the walk from anchor to anchor. Only a budget's
last cycle may differ: an engine shortens that block.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dflash2_core.drafter import best_candidates
from dflash2_core.drafter.model import Drafter
from dflash2_core.errors import Dflash2Error
from dflash2_core.training.blocks import Blocks, all_anchors, block_attention, make_blocks
from dflash2_core.training.documents import Batch, Document, collate
from dflash2_core.training.features import FeatureSource
from dflash2_core.transformers_engine.target import Target

RECALL_WITHOUT_SELECTOR = 16
ANCHORS_AT_ONCE = 128  # of each document: the largest tensors grow with them


@dataclass(frozen=True)
class HeldOut:
    """acceptance_length  tokens per target pass in greedy decoding, the bonus token included, over all documents
    oracle_length      the same, had the best path through the candidates been found each time
    recall             of row k = 1 .. B-1: how often the label is among the K candidates, over all anchors
    num_cycles         target passes that `acceptance_length` is the mean of
    """

    acceptance_length: float
    oracle_length: float
    recall: list[float]
    num_cycles: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def evaluate(drafter: Drafter, target: Target, documents: Sequence[Document], *, batch_size: int = 4) -> HeldOut:
    """documents: written by the target greedily; those without a token after the first are left out, all: Dflash2Error."""
    usable = sorted((d for d in documents if len(d.tokens) > d.prompt_length + 1), key=lambda d: len(d.tokens))
    if not usable:
        raise Dflash2Error("no document has two tokens of response: there is nothing to measure")
    num_tokens = sum(len(d.tokens) - d.prompt_length - 1 for d in usable)
    cycles = oracle_cycles = 0
    found, judged = torch.zeros(2, drafter.config.num_drafts, dtype=torch.int64)
    source = FeatureSource(target, drafter.config.target_layer_ids)
    for start in range(0, len(usable), batch_size):
        some = usable[start : start + batch_size]
        batch = collate(some).to(target.device)
        anchors = all_anchors(batch)
        taps, N = source.of(some).taps, anchors.shape[1]
        slices = (anchors[:, first : first + ANCHORS_AT_ONCE] for first in range(0, N, ANCHORS_AT_ONCE))
        parts = [_score(drafter, target, batch, taps, part) for part in slices]
        right, hits, labels = (torch.cat(of_all, dim=1) for of_all in zip(*parts, strict=True))
        found, judged = found + hits.sum((0, 1)).cpu(), judged + labels.sum((0, 1)).cpu()
        cycles += _count_cycles(right, anchors)
        oracle_cycles += _count_cycles(hits, anchors)
    recall = (found / judged.clamp(min=1)).tolist()
    return HeldOut(num_tokens / cycles, num_tokens / oracle_cycles, recall, cycles)


def _score(drafter: Drafter, target: Target, batch: Batch, taps: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """anchors [D, N] -> [D, N, L] bool: where the draft is right, where the label is a candidate, where there is a label."""
    blocks = make_blocks(batch, anchors, drafter.config.block_size, drafter.config.mask_token_id)
    drafts, candidates = _draft(drafter, target, taps, blocks)
    right = (drafts == blocks.labels) & blocks.judged
    hits = (candidates == blocks.labels[..., None]).any(-1) & blocks.judged
    shape = (*anchors.shape, drafter.config.num_drafts)
    return right.view(shape), hits.view(shape), blocks.judged.view(shape)


def _draft(drafter: Drafter, target: Target, taps: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Greedy drafts [R, L] and candidates [R, L, K] of all blocks."""
    D, T = taps.shape[:2]
    positions = torch.arange(T, device=taps.device).expand(D, -1)
    context = drafter.context_kv(drafter.encode_taps(taps), positions)
    attend = block_attention(drafter.config, context, T, blocks)
    hidden = drafter.hidden(drafter.embed(blocks.ids, target.embed), blocks.positions, attend)[:, 1:]
    logits = drafter.logits(hidden, target.head)
    if drafter.candidate_selector is None:
        candidates = best_candidates(logits, min(RECALL_WITHOUT_SELECTOR, logits.shape[-1]))[1]
        return candidates[..., 0], candidates
    greedy = torch.zeros(len(hidden), device=hidden.device)
    drafts, candidates, _, _ = drafter.candidate_selector(hidden, logits, blocks.ids[:, 0], greedy, None)
    return drafts, candidates


def _count_cycles(right: Tensor, anchors: Tensor) -> int:
    """right [D, N, L] bool, anchors [D, N] in order -> target passes to walk each document from its first anchor."""
    runs = right.long().cumprod(-1).sum(-1).tolist()
    counts = (anchors >= 0).sum(1).tolist()
    total = 0
    for run, count in zip(runs, counts, strict=True):
        at = 0
        while at < count:
            at += run[at] + 1
            total += 1
    return total
