"""The candidate selector: which of each row's K best ids form the best path through the block (reference, section 5)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash2_core.config import DrafterConfig
from dflash2_core.drafter.health import sums
from dflash2_core.sampling import draw


def best_candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best ids of each row. Among equal logits the lower id wins, at the edge of the k too.

    logits [..., V] float -> (unary [..., k], candidates [..., k] int64), best first. A NaN counts as best, so that it shows
    in `unary`.
    """
    if logits.dtype == torch.float64:
        unary, candidates = logits.sort(dim=-1, descending=True, stable=True)
        return unary[..., :k], candidates[..., :k]
    V = logits.shape[-1]
    if logits.device.type != "cpu" or torch.compiler.is_compiling():  # nothing may wait for a value there
        candidates = _ordered_keys(logits, torch.arange(V, device=logits.device), V).topk(k, dim=-1).indices
        return logits.gather(-1, candidates), candidates
    unary, candidates = logits.topk(min(k + 1, V), dim=-1)
    if bool((unary[..., 1:] < unary[..., :-1]).all()):  # nothing is equal that could change places
        return unary[..., :k], candidates[..., :k]
    num_near = int((~(logits < unary[..., k - 1 : k])).sum(-1).max())  # a NaN is not less
    if num_near > max(4 * k, V // 8):  # constant or broken rows
        candidates = _ordered_keys(logits, torch.arange(V), V).topk(k, dim=-1).indices
        return logits.gather(-1, candidates), candidates
    near = logits.topk(num_near, dim=-1, sorted=False).indices
    order = _ordered_keys(logits.gather(-1, near), near, V).topk(k, dim=-1).indices
    candidates = near.gather(-1, order)
    return logits.gather(-1, candidates), candidates


def _ordered_keys(logits: Tensor, ids: Tensor, V: int) -> Tensor:
    """int64 keys, no two of them equal, that sort by (logit, lower id): topk alone leaves the order of equal values open."""
    values = logits.float().masked_fill(logits.isnan(), torch.inf) + 0.0  # a NaN may carry a sign; adding 0 makes -0 equal 0
    bits = values.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return ordered * V - ids


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
    tokens, q, scores = choose_path(
        transition_scores(unary, candidates, gate, predecessor, successor, anchors), candidates, temperature, uniforms
    )
    q = _one_hot(candidates, tokens, scores.dtype) if q is None else q
    return tokens, q.masked_fill(~scores.isfinite()[..., None], torch.nan)


def choose_path(
    S: Tensor, candidates: Tensor, temperature: Tensor, uniforms: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The walk over transition scores S [B, L, K, K]; the other arguments are those of `walk`.

    Returns tokens [B, L], q [B, L, K] along the path, None where all rows took the argmax, and of each step the best score
    after the token before it [B, L]: NaN or infinite if any score there is.
    """
    top = S.amax(-1)
    best = _best_lowest_id(S, top, candidates)  # [B, L, a]: the choice b after each possible predecessor a
    if uniforms is None:
        path, before = follow(best)
        return _pick(candidates, path), None, _pick(top, before)
    T = temperature.to(S.dtype).view(-1, 1, 1, 1)
    greedy = T <= 0
    q_after = ((S - top[..., None]) / T.masked_fill(greedy, 1.0)).softmax(-1)
    drawn = draw(q_after, uniforms[:, :, None].expand(top.shape)).clamp(min=0)
    path, before = follow(torch.where(greedy[..., 0], best, drawn))
    tokens = _pick(candidates, path)
    q = q_after.gather(2, before[:, :, None, None].expand(-1, -1, 1, q_after.shape[-1]))[:, :, 0]
    return tokens, torch.where(greedy[..., 0], _one_hot(candidates, tokens, q.dtype), q), _pick(top, before)


def transition_scores(
    unary: Tensor, candidates: Tensor, gate: Tensor, predecessor: Tensor, successor: Tensor, anchors: Tensor
) -> Tensor:
    """S [B, L, K, K] (predecessor a, candidate b), float32 or float64. In the first row every a is the anchor.

    All transitions in one product: the walk that follows is then a chain of look-ups.
    """
    dtype = torch.promote_types(unary.dtype, torch.float32)
    before = torch.cat((anchors[:, None, None].expand_as(candidates[:, :1]), candidates[:, :-1]), dim=1)
    A = F.embedding(before, predecessor).to(dtype) * gate[:, :, None].to(dtype)  # [B, L, K, r]
    B = F.embedding(candidates, successor).to(dtype)
    return unary[:, :, None].to(dtype) + A @ B.mT


def follow(choice: Tensor) -> tuple[Tensor, Tensor]:
    """choice [B, L, K], the index chosen after each possible predecessor -> the indices of the path, and of what they follow,
    [B, L] int64 both."""
    steps = choice.unbind(1)
    before = [torch.zeros_like(steps[0][:, :1])]
    for step in steps:
        before.append(step.gather(1, before[-1]))
    indices = torch.cat(before, dim=1)
    return indices[:, 1:], indices[:, :-1]


def _best_lowest_id(S: Tensor, top: Tensor, candidates: Tensor) -> Tensor:
    """The index of the best b for each a; among equal scores that of the lowest id."""
    ids = candidates[:, :, None].expand_as(S)
    best = top[..., None] <= S
    return ids.masked_fill(~best, torch.iinfo(torch.int64).max).argmin(-1)


def _pick(of_each: Tensor, index: Tensor) -> Tensor:
    """of_each [B, L, K], index [B, L] -> [B, L]"""
    return of_each.gather(2, index[:, :, None]).squeeze(2)


def _one_hot(candidates: Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    return (candidates == tokens[..., None]).to(dtype)


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
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """hidden [B, L, H], logits [B, L, V] -> tokens [B, L], candidates [B, L, K], q [B, L, K] or None (every row took the
        argmax), and a sum of scores [B, L] that is finite only if all of them are."""
        unary, candidates = best_candidates(logits, self.top_k)
        gate = self.hidden_projection(hidden)
        S = transition_scores(unary, candidates, gate, self.predecessor_codebook, self.successor_codebook, anchors)
        tokens, q, scores = choose_path(S, candidates, temperature, uniforms)
        return tokens, candidates, q, scores + sums(unary)
