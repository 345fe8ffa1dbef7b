"""What the frozen target says of whole documents: the drafter's input, and what it is judged by."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dflash2_core.training.documents import Document, collate
from dflash2_core.transformers_engine.target import Target


@dataclass(frozen=True)
class Features:
    """Of D documents, padded to T positions on the right.

    taps    [D, T, n_taps * H], in the target's dtype
    hidden  [D, T, H], final hidden states: `target.logits` takes those of the rows that are needed to logits, since for all
            rows these would be the largest tensor of a step
    """

    taps: Tensor
    hidden: Tensor


class FeatureSource:
    """The target's features of documents: one pass a batch, or with `keep` one pass a document, once.

    Kept features stand on the target's device: (n_taps + 1) * H numbers a token. They pay from the second epoch on. Each
    document then has a pass of its own, so that its features do not depend on its company when it was first drawn.
    """

    def __init__(self, target: Target, layer_ids: Sequence[int], *, keep: bool = False) -> None:
        self.target, self.layer_ids, self.keep = target, tuple(layer_ids), keep
        self._kept: dict[tuple[int, ...], Features] = {}

    def of(self, documents: Sequence[Document]) -> Features:
        if not self.keep:
            return self._computed(documents)
        rows = [self._remembered(document) for document in documents]
        taps, hidden = [row.taps[0] for row in rows], [row.hidden[0] for row in rows]
        return Features(pad_sequence(taps, batch_first=True), pad_sequence(hidden, batch_first=True))

    def _remembered(self, document: Document) -> Features:
        key = tuple(document.tokens)
        if key not in self._kept:
            self._kept[key] = self._computed([document])
        return self._kept[key]

    @torch.no_grad()
    def _computed(self, documents: Sequence[Document]) -> Features:
        tokens = collate(documents).tokens.to(self.target.device)
        return Features(*self.target.encode(tokens, self.layer_ids))
