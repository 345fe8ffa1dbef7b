"""From the target's logits to what each request of a batch may keep."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash2_core.errors import Dflash2Error
from dflash2_core.proposal import Proposal, Verdict
from dflash2_core.sampling import (
    BROKEN,
    RandomStreams,
    processed_logits,
    target_distribution,
    verify_greedy,
    verify_sampled,
)
from dflash2_core.transformers_engine.requests import Request


@dataclass(frozen=True)
class Outcome:
    """One request's share of a verdict: the ids to commit (accepted drafts, then the target's own token), how many drafts were
    verified, and how many accepted. `error`: why the target has no token of its own."""

    ids: list[int]
    drafted: int = 0
    accepted: int = 0
    error: Exception | None = None


def judge(requests: Sequence[Request], proposal: Proposal, logits: Tensor) -> list[Outcome]:
    """Verify a batch; logits [B, L+1, V] are the target's own. A request whose options cannot be honoured fails alone."""
    try:
        verdict = _verify(requests, proposal, logits)
    except Exception as error:  # a request's own logits processor may raise anything
        if len(requests) == 1:
            return [Outcome([], int(proposal.lengths[0]), error=error)]
        return [
            outcome
            for row, request in enumerate(requests)
            for outcome in judge([request], _row(proposal, row), logits[row : row + 1])
        ]
    return _to_host(proposal, verdict)


def _verify(requests: Sequence[Request], proposal: Proposal, logits: Tensor) -> Verdict:
    params = [request.params for request in requests]
    all_greedy = all(each.is_greedy for each in params)
    if all_greedy and not any(each.rewrites_logits for each in params):
        return verify_greedy(proposal, logits)
    history: dict[str, Any] = {
        "prompts": [request.prompt for request in requests],
        "outputs": [request.output for request in requests],
        "drafts": proposal.tokens,
        "lengths": _drafts_before_an_end(proposal, [request.stop_ids for request in requests]),
    }
    if all_greedy:
        return verify_greedy(proposal, processed_logits(logits, params, **history))
    p = target_distribution(logits, params, **history)
    anchors = torch.tensor([request.num_tokens - 1 for request in requests])
    return verify_sampled(proposal, p, RandomStreams([request.seed for request in requests]), anchors)


def _drafts_before_an_end(proposal: Proposal, stop_ids: Sequence[Collection[int]]) -> Tensor:
    """[B] int64. Rows past a draft that ends the text are for nobody: plain decoding shows no option such a history."""
    ends = torch.stack(
        [
            torch.isin(tokens, torch.tensor(sorted(ids), dtype=torch.int64, device=tokens.device))
            for tokens, ids in zip(proposal.tokens, stop_ids, strict=True)
        ]
    )
    return torch.minimum(proposal.lengths, (~ends).long().cumprod(-1).sum(-1))


def _to_host(proposal: Proposal, verdict: Verdict) -> list[Outcome]:
    """All that the host needs of one cycle, in one transfer."""
    numbers = torch.stack((proposal.lengths, verdict.num_accepted, verdict.next_token), dim=1)
    outcomes = []
    for *drafts, drafted, n, token in torch.cat((proposal.tokens, numbers), dim=1).tolist():
        if token == BROKEN:
            outcomes.append(Outcome(drafts[:n], drafted, n, _broken()))
        else:
            outcomes.append(Outcome([*drafts[:n], token], drafted, n))
    return outcomes


def _broken() -> Dflash2Error:
    return Dflash2Error(
        "no token can be chosen: the logits are NaN, infinite or forbid every id. NaN and infinity come from the target (its "
        "weights, or numbers too large for the dtype: try float32), -inf for every id from a logit_bias or a logits processor"
    )


def _row(proposal: Proposal, row: int) -> Proposal:
    parts = (proposal.tokens, proposal.lengths, proposal.candidates, proposal.probs)
    tokens, lengths, candidates, probs = (None if part is None else part[row : row + 1] for part in parts)
    assert tokens is not None
    assert lengths is not None
    return Proposal(tokens=tokens, lengths=lengths, candidates=candidates, probs=probs)
