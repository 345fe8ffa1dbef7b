"""What travels between drafter and verification, in every engine: a Proposal goes in, a Verdict comes out."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One block of drafts per row.

    tokens      [B, L] int64, the drafts d_1..d_L; entries at or past a row's length are padding and never read
    lengths     [B] int64, drafts per row, 0 <= lengths <= L
    candidates  [B, L, K] int64, the ids that `probs` speaks of; None: `probs` covers the whole vocabulary
    probs       [B, L, K] (or [B, L, V] without candidates) float, q as it was walked; None: every row is an argmax walk,
                so that q is one-hot. In a mixed batch the greedy rows are one-hot.
    """

    tokens: Tensor
    lengths: Tensor
    candidates: Tensor | None = None
    probs: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the target made of a Proposal.

    num_accepted  [B] int64, the accepted drafts n, 0 <= n <= lengths
    next_token    [B] int64, the recovery token (n < length) or the bonus token (n == length)
    """

    num_accepted: Tensor
    next_token: Tensor
