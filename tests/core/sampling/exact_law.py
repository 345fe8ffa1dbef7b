"""The exact law of what a cycle emits, measured on the code under test and summed over all draws.

A cycle's outcome is a piecewise constant function of its uniforms. `pieces` finds the pieces along one uniform by narrowing on
the code itself, so that their widths are the probabilities the code really has, to 2**-53; nothing is re-derived from p or q.
The sum runs over draft paths (as the proposal's own draws give them), accept or reject at each draft, and the next token.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from dflash2_core.proposal import Proposal, Verdict
from dflash2_core.sampling import Purpose, SamplingParams, draw, target_distribution, verify_sampled

TOP = 1 - 2.0**-53
PROBES = 48

Outcome = Callable[[Tensor, Tensor], Tensor]
"""(items [M] int64, uniforms [M]) -> outcomes [M] int64"""


class ScriptedStreams:
    """RandomStreams whose draws are given: table [N, positions] for each purpose."""

    def __init__(self, tables: dict[Purpose, Tensor]) -> None:
        self.tables = tables

    def uniform(self, positions: Tensor, purpose: Purpose | str) -> Tensor:
        return self.tables[Purpose(purpose)].gather(1, positions.reshape(len(positions), -1)).view(positions.shape)


@dataclass
class Game:
    """A target and a drafter made of tables. Verification sees one block of L drafts after the anchor.

    logits      [V, V, V] float64: of the next id after the last two
    q           [L, V, W] float64: the drafter's law in each slot, given the id before; W candidates, or all V ids
    candidates  [L, W] int64, or None: q is over the whole vocabulary
    argmax      the drafter takes the best and hands over no probabilities
    length      drafts of the row, the rest of the block being padding; None: L
    """

    logits: Tensor
    q: Tensor
    candidates: Tensor | None = None
    argmax: bool = False
    length: int | None = None
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=1.0))
    prompt: tuple[int, ...] = (0, 1, 1, 2)
    output: tuple[int, ...] = (2, 1)

    @property
    def V(self) -> int:  # noqa: N802
        return len(self.logits)

    @property
    def L(self) -> int:  # noqa: N802
        return len(self.q)

    @property
    def drafts(self) -> int:
        return self.L if self.length is None else self.length

    def raw_logits(self, tails: Tensor) -> Tensor:
        """tails [N, T] int64 after the output -> logits of the ids that follow each of its prefixes, [N, T+1, V]"""
        history = torch.cat([torch.tensor([self.output[-2:]]).expand(len(tails), 2), tails], 1)
        return self.logits[history[:, :-1], history[:, 1:]]

    def sample(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """uniforms [N, L] -> drafts [N, L] and q along them [N, L, W], as the drafter makes them"""
        N = len(uniforms)
        before, tokens, walked = torch.full((N,), self.output[-1]), [], []
        for t in range(self.L):
            q = self.q[t, before]  # [N, W]
            chosen = q.argmax(-1) if self.argmax else draw(q, uniforms[:, t])
            before = chosen if self.candidates is None else self.candidates[t, chosen]
            tokens.append(before)
            walked.append(q)
        return torch.stack(tokens, 1), torch.stack(walked, 1)

    def block_p(self, drafts: Tensor) -> Tensor:
        """p [N, T+1, V] of a block of drafts [N, T], as an engine asks for it."""
        N = len(drafts)
        return target_distribution(
            self.raw_logits(drafts),
            [self.params] * N,
            prompts=[self.prompt] * N,
            outputs=[self.output] * N,
            drafts=drafts,
        )

    def plain_p(self, emitted: Tensor) -> Tensor:
        """p [N, V] of the next id after emitted [N, T], as decoding token by token asks for it."""
        N = len(emitted)
        return target_distribution(
            self.raw_logits(emitted)[:, -1:],
            [self.params] * N,
            prompts=[self.prompt] * N,
            outputs=[(*self.output, *row) for row in emitted.tolist()],
            drafts=torch.empty(N, 0, dtype=torch.int64),
        )[:, 0]

    def plain_law(self) -> list[Tensor]:
        """P(x_m | x_1 .. x_{m-1}) for m = 1 .. length + 1, each [V] * m."""
        laws = []
        for m in range(self.drafts + 1):
            prefixes = torch.tensor(list(product(range(self.V), repeat=m)), dtype=torch.int64).view(self.V**m, m)
            laws.append(self.plain_p(prefixes).view([self.V] * (m + 1)))
        return laws


@dataclass
class Paths:
    """Every draft path: ids [N, length], q [N, length, W] along it, the box of draft uniforms that leads to it [N, length]."""

    ids: Tensor
    q: Tensor
    low: Tensor
    high: Tensor

    @property
    def weight(self) -> Tensor:
        return (self.high - self.low).prod(1)


def enumerate_paths(game: Game) -> Paths:
    """Grows all paths slot by slot, the intervals of each draft's uniform measured on the drafter."""
    low, high = torch.zeros(1, 0).double(), torch.zeros(1, 0).double()
    for t in range(game.drafts):
        uniforms = torch.nn.functional.pad((low + high) / 2, (0, game.L - t), value=0.5)

        def draft(item: Tensor, u: Tensor, t: int = t, uniforms: Tensor = uniforms) -> Tensor:
            return game.sample(uniforms[item].index_copy(1, torch.tensor([t]), u[:, None]))[0][:, t]

        item, start, end, _ = pieces(draft, torch.zeros(len(low)), torch.ones(len(low)))
        low = torch.cat([low[item], start[:, None]], 1)
        high = torch.cat([high[item], end[:, None]], 1)
    ids, q = game.sample(torch.nn.functional.pad((low + high) / 2, (0, game.L - game.drafts), value=0.5))
    return Paths(ids[:, : game.drafts], q[:, : game.drafts], low, high)


class Cycle:
    """Runs verification on chosen paths with chosen uniforms, all in one batch."""

    def __init__(self, game: Game, verify: Callable[..., Verdict] = verify_sampled) -> None:
        self.game, self.verify = game, verify
        self.paths = enumerate_paths(game)
        self.p = game.block_p(self.paths.ids)

    def proposal(self, item: Tensor) -> Proposal:
        """The paths `item` [M], padded to L with what must never be read."""
        game, M, padding = self.game, len(item), self.game.L - self.game.drafts
        tokens = torch.nn.functional.pad(self.paths.ids[item], (0, padding), value=-1)
        probs = torch.nn.functional.pad(self.paths.q[item], (0, 0, 0, padding), value=torch.nan)
        candidates = None
        if game.candidates is not None:
            candidates = game.candidates.expand(M, -1, -1).clone()
            candidates[:, game.drafts :] = -1
        lengths = torch.full((M,), game.drafts)
        if game.argmax:
            return Proposal(tokens=tokens, lengths=lengths)
        return Proposal(tokens=tokens, lengths=lengths, candidates=candidates, probs=probs)

    def __call__(self, item: Tensor, drafted: Tensor, accept: Tensor, recover: Tensor, bonus: Tensor) -> Verdict:
        """item [M]; draft and accept draws [M, length]; draws of the next token [M]. The anchor stands at position 0."""
        game, M = self.game, len(item)
        unused = torch.full((M, game.L + 2), torch.nan).double()
        tables = {purpose: unused.clone() for purpose in Purpose}
        tables[Purpose.DRAFT][:, 1 : game.drafts + 1] = drafted
        tables[Purpose.ACCEPT][:, 1 : game.drafts + 1] = accept
        tables[Purpose.RECOVER][:, 1 : game.drafts + 1] = recover[:, None]
        tables[Purpose.BONUS][:, game.drafts + 1] = bonus
        p = torch.nn.functional.pad(self.p[item], (0, 0, 0, game.L - game.drafts), value=torch.nan)
        streams = ScriptedStreams(tables)
        return self.verify(self.proposal(item), p, streams, torch.zeros(M, dtype=torch.int64))


@dataclass
class Law:
    """joint: of the first length + 1 ids, [V] * (length + 1): those that a cycle emits, then plain sampling."""

    joint: Tensor
    mean_accepted: float


def emitted_law(game: Game, verify: Callable[..., Verdict] = verify_sampled) -> Law:
    cycle = Cycle(game, verify)
    paths, plain = cycle.paths, game.plain_law()
    middle = (paths.low + paths.high) / 2
    reach = paths.weight  # of the path, and of its drafts so far being accepted
    mean_accepted = 0.0
    mass = [torch.zeros([game.V] * (m + 1)).double() for m in range(game.drafts + 1)]
    for k in range(game.drafts):
        accepted = _acceptance(cycle, middle, k)
        item, share, token = _recovery(cycle, middle, k, reach * (1 - accepted))
        mass[k].index_put_((*paths.ids[item, :k].unbind(1), token), share, accumulate=True)
        reach = reach * accepted
        mean_accepted += reach.sum().item()
    item, share, token = _bonus(cycle, middle, reach)
    mass[-1].index_put_((*paths.ids[item].unbind(1), token), share, accumulate=True)
    joint = mass[0]
    for m in range(1, game.drafts + 1):
        joint = joint[..., None] * plain[m] + mass[m]
    return Law(joint, mean_accepted)


def plain_joint(game: Game) -> Tensor:
    plain = game.plain_law()
    joint = plain[0]
    for law in plain[1:]:
        joint = joint[..., None] * law
    return joint


def _acceptance(cycle: Cycle, middle: Tensor, k: int) -> Tensor:
    """The measure [N] of accept draws k with which draft k + 1 stands, the drafts before it standing."""
    N = len(middle)

    def stands(item: Tensor, u: Tensor) -> Tensor:
        half = torch.full_like(u, 0.5)
        n = cycle(item, middle[item], _accept_draws(cycle.game, u, k), half, half).num_accepted
        return (n > k).long()

    item, start, end, outcome = pieces(stands, torch.zeros(N), torch.ones(N))
    return torch.zeros(N).double().index_add_(0, item, (end - start) * outcome)


def _recovery(cycle: Cycle, middle: Tensor, k: int, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What follows a rejection of draft k + 1 -> path [M], share [M] of the total probability, token [M].

    Integrates over the recovery draw and, within the path's box, over the draft's own draw, on which it must not depend.
    """
    live = weight.nonzero().squeeze(1)
    low, high = cycle.paths.low[live, k], cycle.paths.high[live, k]

    def token(path: Tensor, drafted: Tensor, recover: Tensor) -> Tensor:
        draws = middle[path].clone()
        draws[:, k] = drafted
        accept = _accept_draws(cycle.game, torch.full_like(recover, TOP), k)
        verdict = cycle(path, draws, accept, recover, torch.full_like(recover, torch.nan))
        assert (verdict.num_accepted == k).all(), "a path with a rejecting draw was not rejected"
        return verdict.next_token

    def by_draft_draw(item: Tensor, u: Tensor) -> Tensor:
        return token(live[item], u, torch.full_like(u, 0.5))

    box, start, end, _ = pieces(by_draft_draw, low, high)
    path, drafted = live[box], (start + end) / 2
    share = weight[path] * (end - start) / (high - low)[box]
    piece, start, end, chosen = pieces(
        lambda item, u: token(path[item], drafted[item], u), torch.zeros(len(path)), torch.ones(len(path))
    )
    return path[piece], share[piece] * (end - start), chosen


def _bonus(cycle: Cycle, middle: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What follows a fully accepted path -> path [M], share [M] of the total probability, token [M]."""
    live = weight.nonzero().squeeze(1)

    def token(item: Tensor, u: Tensor) -> Tensor:
        path = live[item]
        verdict = cycle(path, middle[path], torch.zeros_like(middle[path]), torch.full_like(u, torch.nan), u)
        assert (verdict.num_accepted == cycle.game.drafts).all(), "a path of standing drafts was not accepted"
        return verdict.next_token

    item, start, end, chosen = pieces(token, torch.zeros(len(live)), torch.ones(len(live)))
    return live[item], weight[live[item]] * (end - start), chosen


def _accept_draws(game: Game, u: Tensor, k: int) -> Tensor:
    """[M, length]: 0 before k (a draft that can stand does), u at k, the largest after it."""
    draws = torch.zeros(len(u), game.drafts).double()
    draws[:, k:] = TOP
    draws[:, k] = u
    return draws


def pieces(f: Outcome, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The constant pieces of f over [low, high) [N] -> item, start, end, outcome [M].

    Between neighbouring probes that differ the first step is narrowed down to adjacent floats, then the next, until all are
    found. A piece narrower than the probes' distance, with the same outcome on both sides, would be missed.
    """
    low, high = low.double(), high.double()
    N = len(low)
    if N == 0:
        return torch.empty(0, dtype=torch.int64), low, high, torch.empty(0, dtype=torch.int64)
    grid = low[:, None] + (high - low)[:, None] * torch.linspace(0, 1, PROBES + 1).double()
    grid[:, -1] = torch.nextafter(high, low)
    item = torch.arange(N).repeat_interleave(PROBES)
    a, b = grid[:, :-1].flatten(), grid[:, 1:].flatten()
    values = f(torch.arange(N).repeat_interleave(PROBES + 1), grid.flatten()).view(N, PROBES + 1)
    at_a, at_b = values[:, :-1].flatten(), values[:, 1:].flatten()
    items, starts, outcomes = [torch.arange(N)], [low], [values[:, 0]]
    while (differ := at_a != at_b).any():
        item, a, b, at_a, at_b = (x[differ] for x in (item, a, b, at_a, at_b))
        right = _first_step(f, item, a, b, at_a)
        items.append(item)
        starts.append(right)
        a, at_a = right, f(item, right)
        outcomes.append(at_a)
    item, start, outcome = torch.cat(items), torch.cat(starts), torch.cat(outcomes)
    order = start.argsort(stable=True)
    order = order[item[order].argsort(stable=True)]
    item, start, outcome = item[order], start[order], outcome[order]
    last = torch.ones(len(item), dtype=torch.bool)
    last[:-1] = item[1:] != item[:-1]
    end = torch.where(last, high[item], start.roll(-1))
    return item, start, end, outcome


def _first_step(f: Outcome, item: Tensor, left: Tensor, right: Tensor, at_left: Tensor) -> Tensor:
    """The least uniform in (left, right] [M] with another outcome than at left, by 14 cuts into 16."""
    sixteenths = torch.arange(17, dtype=torch.float64) / 16
    for _ in range(14):
        edges = torch.lerp(left[:, None], right[:, None], sixteenths)
        inner = f(item.repeat_interleave(15), edges[:, 1:-1].flatten()).view(-1, 15)
        same = torch.nn.functional.pad(inner == at_left[:, None], (0, 1))
        first = 1 + (~same).int().argmax(-1, keepdim=True)
        left, right = edges.gather(1, first - 1).squeeze(1), edges.gather(1, first).squeeze(1)
    return right
