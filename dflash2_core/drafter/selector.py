"""The candidate selector: which of each row's K best ids form the best path through the block (reference, section 5)."""

import torch
from torch import Tensor, nn

from dflash2_core.config import DrafterConfig
from dflash2_core.sampling import draw


def best_candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best ids of each row. Among equal logits the lower id wins, at the edge of the k too.

    logits [..., V] float -> (unary [..., k], candidates [..., k] int64), best first. A NaN counts as best, so that it shows
    in `unary`.
    """
    if logits.dtype == torch.float64:
        unary, candidates = logits.sort(dim=-1, descending=True, stable=True)
        return unary[..., :k], candidates[..., :k]
    candidates = _ordered_keys(logits).topk(k, dim=-1).indices  # no two keys are equal
    return logits.gather(-1, candidates), candidates


def _ordered_keys(logits: Tensor) -> Tensor:
    """int64 keys that sort by (logit, lower id): topk alone leaves the order of equal values open."""
    values = logits.float().masked_fill(logits.isnan(), torch.inf) + 0.0  # a NaN may carry a sign; adding 0 makes -0 equal 0
    bits = values.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    V = logits.shape[-1]
    return ordered * V - torch.arange(V, device=logits.device)


def walk(
    unary: Tensor,
    candidates: Tensor,
    gate: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    anchors: Tensor,
    *,
    temperature: Tensor,
    uniforms: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Choose one candidate a row, each given the one before, from the anchor on.

        S_t(a, b) = U_t(b) + < A[a] * gate_t, B[b] >
        T = 0: the best b, ties to the lowest id.   T > 0: b ~ q_t = softmax(S_t(a, .) / T)

    unary        [B, L, K] float, U: the candidates' logits, after scale and softcap
    candidates   [B, L, K] int64, in any order
    gate         [B, L, r] float, P h
    predecessor  [V, r] float, A ;  successor [V, r] float, B
    anchors      [B] int64
    temperature  [B] float, 0 for greedy rows; read only where there are uniforms
    uniforms     [B, L] float64 in [0, 1), or None: every row takes the argmax
    Returns tokens [B, L] int64 and probs [B, L, K] (float32, or float64 for float64 input): q along the walked path,
    one-hot where the row took the argmax, NaN where the scores on the path were not finite.
    """
    S = transition_scores(unary, candidates, gate, predecessor, successor, anchors)
    top = S.amax(-1)  # [B, L, a]: NaN or infinite if any of the scores after a is
    best = _best_lowest_id(S, top, candidates)  # [B, L, a]: the choice b after each possible predecessor a
    if uniforms is None:
        path = follow(best)
        q = _one_hot(path, S)
    else:
        T = temperature.to(S.dtype).view(-1, 1, 1, 1)
        greedy = T <= 0
        q_after = ((S - top[..., None]) / T.masked_fill(greedy, 1.0)).softmax(-1)
        drawn = draw(q_after, uniforms[:, :, None].expand(top.shape)).clamp(min=0)
        path = follow(torch.where(greedy[..., 0], best, drawn))
        q = torch.where(greedy[..., 0], _one_hot(path, S), _along(q_after, path))
    return _pick(candidates, path), q.masked_fill(~_along(top[..., None], path).isfinite(), torch.nan)


def transition_scores(
    unary: Tensor, candidates: Tensor, gate: Tensor, predecessor: Tensor, successor: Tensor, anchors: Tensor
) -> Tensor:
    """S [B, L, K, K] (predecessor a, candidate b), float32 or float64. In the first row every a is the anchor.

    All transitions in one product: the walk that follows is then a chain of look-ups.
    """
    dtype = torch.promote_types(unary.dtype, torch.float32)
    before = torch.cat((anchors[:, None, None].expand_as(candidates[:, :1]), candidates[:, :-1]), dim=1)
    A = predecessor[before].to(dtype) * gate[:, :, None].to(dtype)  # [B, L, K, r]
    B = successor[candidates].to(dtype)
    return unary[:, :, None].to(dtype) + A @ B.mT


def follow(choice: Tensor) -> Tensor:
    """choice [B, L, K], the index chosen after each possible predecessor -> the path's indices [B, L] int64."""
    index = choice[:, 0, :1]
    path = [index]
    for t in range(1, choice.shape[1]):
        index = choice[:, t].gather(1, index)
        path.append(index)
    return torch.cat(path, dim=1)


def _along(after: Tensor, path: Tensor) -> Tensor:
    """after [B, L, a, W], something known for each possible predecessor a -> [B, L, W], for those on the path."""
    before = torch.cat((torch.zeros_like(path[:, :1]), path[:, :-1]), dim=1)
    return after.gather(2, before[:, :, None, None].expand(-1, -1, 1, after.shape[-1]))[:, :, 0]


def _best_lowest_id(S: Tensor, top: Tensor, candidates: Tensor) -> Tensor:
    """The index of the best b for each a; among equal scores that of the lowest id."""
    ids = candidates[:, :, None].expand_as(S)
    best = top[..., None] <= S
    return ids.masked_fill(~best, torch.iinfo(torch.int64).max).argmin(-1)


def _pick(candidates: Tensor, path: Tensor) -> Tensor:
    return candidates.gather(2, path[:, :, None])[:, :, 0]


def _one_hot(path: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like[:, :, 0]).scatter_(2, path[:, :, None], 1.0)


class CandidateSelector(nn.Module):
    """The selector's weights. A new one has a zero successor codebook: all scores are the unary ones."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        assert config.selector_rank is not None
        assert config.selector_top_k is not None
        self.top_k = config.selector_top_k
        self.hidden_projection = nn.Linear(config.hidden_size, config.selector_rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.randn(config.vocab_size, config.selector_rank))
        self.successor_codebook = nn.Parameter(torch.zeros(config.vocab_size, config.selector_rank))

    def forward(
        self, hidden: Tensor, logits: Tensor, anchors: Tensor, temperature: Tensor, uniforms: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """hidden [B, L, H], logits [B, L, V] -> tokens [B, L], unary, candidates and probs [B, L, K]"""
        unary, candidates = best_candidates(logits, self.top_k)
        tokens, probs = walk(
            unary,
            candidates,
            self.hidden_projection(hidden),
            self.predecessor_codebook,
            self.successor_codebook,
            anchors,
            temperature=temperature,
            uniforms=uniforms,
        )
        return tokens, unary, candidates, probs
