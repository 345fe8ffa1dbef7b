"""The same blocks of drafts as `peer.py` makes, by the core."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash2_core import Drafter


@torch.inference_mode()
def blocks(
    drafter: Drafter, taps: Tensor, ids: Tensor, anchors: Sequence[int], embedding: Tensor, head: Tensor
) -> tuple[Tensor, Tensor]:
    """logits [A, B - 1, V] and greedy drafts [A, B - 1].

    taps [T, n_taps * H_target], ids [T]: of a text; anchors: positions in it; embedding and head [V, H]: the target's
    """
    found = [_block(drafter, taps[None, :at], int(ids[at]), embedding, head) for at in anchors]
    logits, drafts = zip(*found, strict=True)
    return torch.stack(logits), torch.stack(drafts)


def _block(drafter: Drafter, taps: Tensor, anchor: int, embedding: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    config, committed, B = drafter.config, taps.shape[1], drafter.config.block_size
    context = drafter.new_context()
    context.join()
    context.append(taps, [committed])
    ids = torch.full((1, B), config.mask_token_id)
    ids[0, 0] = anchor
    attend = context.views([B], B).attention(torch.tensor([committed]), torch.tensor([B]), B)
    rows = drafter.embed(ids, lambda tokens: embedding[tokens])
    hidden = drafter.hidden(rows, torch.arange(committed, committed + B)[None], attend)
    proposal = drafter.propose(
        context,
        torch.tensor([anchor]),
        [config.num_drafts],
        embed=lambda tokens: embedding[tokens],
        head=lambda states: states @ head.T,
        temperature=torch.zeros(1),
        streams=None,
    )
    return drafter.logits(hidden, lambda states: states @ head.T)[0, 1:], proposal.tokens[0]
