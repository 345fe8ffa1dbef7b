"""What a drafter borrows of its target, and a way to ask it for one block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from dflash2_core import Drafter, Proposal, RandomStreams
from dflash2_core.drafter import DrafterContext
from tests.core.toys import VOCABULARY


@dataclass
class Draft:
    """A proposal, and the final hidden states [B, L, H] that it was chosen from."""

    proposal: Proposal
    hidden: Tensor

    def tokens(self, row: int) -> list[int]:
        return self.proposal.tokens[row, : int(self.proposal.lengths[row])].tolist()


@dataclass
class Borrowed:
    """A target's embedding and head, random, logits of the size of 1; `propose` drafts with them."""

    embedding: Tensor  # [V, H]
    head: Tensor  # [V or more, H]

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding[ids]

    def propose(
        self,
        drafter: Drafter,
        context: DrafterContext,
        anchors: Sequence[int],
        lengths: Sequence[int],
        *,
        temperature: Sequence[float] | None = None,
        seeds: Sequence[int] | None = None,
        spoil: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> Draft:
        seen = []

        def head(hidden: Tensor) -> Tensor:
            seen.append(hidden[:, 1:])  # the anchor's row is not read
            return spoil(hidden @ self.head.T)

        proposal = drafter.propose(
            context,
            torch.tensor(anchors, dtype=torch.int64),
            lengths,
            embed=self.embed,
            head=head,
            temperature=torch.tensor(temperature or [0.0] * len(anchors)),
            streams=None if seeds is None else RandomStreams(torch.tensor(seeds)),
        )
        return Draft(proposal, seen[0] if seen else torch.zeros(len(anchors), proposal.tokens.shape[1], 0))


def borrowed(seed: int = 0, rows: int = VOCABULARY, hidden_size: int = 16) -> Borrowed:
    generator = torch.Generator().manual_seed(seed)
    return Borrowed(
        embedding=torch.randn(VOCABULARY, hidden_size, generator=generator),
        head=torch.randn(rows, hidden_size, generator=generator) / hidden_size**0.5,
    )


@pytest.fixture
def target() -> Borrowed:
    return borrowed()
