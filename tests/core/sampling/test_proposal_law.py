"""From the walk's noise to the emitted ids: proposals follow the q they hand over, and no two draws share their noise."""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from dflash2_core import walk
from dflash2_core.proposal import Proposal
from dflash2_core.sampling import Purpose, RandomStreams, draw, verify_sampled
from tests.core.sampling.exact_law import Game, emitted_law, plain_joint

V, L, K, RANK = 5, 3, 3, 4
SAMPLES = 200_000


@dataclass
class WalkGame(Game):
    """A game whose drafter is the selector's walk over random tables."""

    temperature: float = 1.0
    unary: Tensor = field(default_factory=lambda: normal(0, L, K))
    gate: Tensor = field(default_factory=lambda: normal(1, L, RANK))
    codebooks: Tensor = field(default_factory=lambda: normal(2, 2, V, RANK))

    def sample(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        N = len(uniforms)
        return walk(
            self.unary.expand(N, -1, -1),
            self.candidates.expand(N, -1, -1),
            self.gate.expand(N, -1, -1),
            *self.codebooks,
            torch.full((N,), self.output[-1]),
            temperature=torch.full((N,), self.temperature, dtype=torch.float64),
            uniforms=uniforms if self.temperature > 0 else None,
        )


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.fixture
def game() -> WalkGame:
    candidates = torch.tensor([[4, 0, 2], [1, 2, 3], [3, 4, 0]])
    return WalkGame(logits=normal(3, V, V, V), q=torch.empty(L, V, K), candidates=candidates)


def surprise(counts: Tensor, law: Tensor) -> float:
    """Pearson's chi-square of counts against a law of the same shape, as a normal deviate (Wilson and Hilferty 1931)."""
    counts, law = counts.flatten().double(), law.flatten().double()
    possible = law > 0
    assert counts[~possible].sum() == 0, "an impossible outcome was drawn"
    expected = law[possible] * counts.sum()
    freedom = len(expected) - 1
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum().item()
    scale = 2 / (9 * freedom)
    return (math.cbrt(chi_square / freedom) - (1 - scale)) / math.sqrt(scale)


def counted(ids: Tensor, size: int) -> Tensor:
    """ids [N, m] -> how often each tuple came, [size] * m"""
    flat = sum(ids[:, i] * size ** (ids.shape[1] - 1 - i) for i in range(ids.shape[1]))
    return flat.bincount(minlength=size ** ids.shape[1]).view([size] * ids.shape[1])


def law_of_paths(tokens: Tensor, q: Tensor, candidates: Tensor) -> Tensor:
    """The law over [V] * L that the q handed over along the drawn paths claims."""
    law = torch.zeros([V] * L).double()
    law[tuple(tokens.T)] = torch.where(candidates == tokens[..., None], q, 0).sum(-1).prod(-1)
    return law


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_frequency_of_proposals_is_the_q_handed_over(game: WalkGame, temperature: float) -> None:
    positions = torch.arange(L).expand(SAMPLES, L)
    uniforms = RandomStreams(torch.arange(SAMPLES)).uniform(positions, Purpose.DRAFT)
    tokens, q = replace(game, temperature=temperature).sample(uniforms)
    assert abs(surprise(counted(tokens, V), law_of_paths(tokens, q, game.candidates))) < 4
    hotter = q**0.9 / (q**0.9).sum(-1, keepdim=True)
    assert surprise(counted(tokens, V), law_of_paths(tokens, hotter, game.candidates)) > 20


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_walk_and_verification_together_have_the_law_of_plain_sampling(game: WalkGame, temperature: float) -> None:
    game = replace(game, temperature=temperature)
    law = emitted_law(game)
    assert (law.joint - plain_joint(game)).abs().max() < 1e-9
    assert law.mean_accepted > 0.1


def test_q_of_another_temperature_breaks_the_law(game: WalkGame) -> None:
    class Mutant(WalkGame):
        def sample(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
            tokens, q = super().sample(uniforms)
            return tokens, q.sqrt() / q.sqrt().sum(-1, keepdim=True)

    mutant = Mutant(**vars(game))
    assert (emitted_law(mutant).joint - plain_joint(mutant)).abs().max() > 1e-3


# One draft over two near-equal ids, and more than one id with p > q, or shared noise could not show.
P = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
Q = torch.tensor([0.3, 0.1, 0.3, 0.3], dtype=torch.float64)


def emitted_counts(streams: RandomStreams, position: int = 7) -> Tensor:
    """First emitted id of one cycle with one draft: counts [4]"""
    positions = torch.full((SAMPLES,), position)
    drafts = draw(Q.expand(SAMPLES, 4), streams.uniform(positions + 1, Purpose.DRAFT))
    proposal = Proposal(tokens=drafts[:, None], lengths=torch.ones_like(drafts), probs=Q.expand(SAMPLES, 1, 4))
    verdict = verify_sampled(proposal, P.expand(SAMPLES, 2, 4), streams, positions)
    first = torch.where(verdict.num_accepted > 0, drafts, verdict.next_token)
    assert 0.6 < verdict.num_accepted.double().mean() < 0.8
    return first.bincount(minlength=4)


class RecoveryWithTheDraftsNoise(RandomStreams):
    def uniform(self, positions: Tensor, purpose: Purpose | str) -> Tensor:
        return super().uniform(positions, Purpose.DRAFT if purpose == Purpose.RECOVER else purpose)


class VerdictWithTheDraftsNoise(RandomStreams):
    def uniform(self, positions: Tensor, purpose: Purpose | str) -> Tensor:
        return super().uniform(positions, Purpose.DRAFT if purpose == Purpose.ACCEPT else purpose)


class RecoveryWithTheVerdictsNoise(RandomStreams):
    def uniform(self, positions: Tensor, purpose: Purpose | str) -> Tensor:
        return super().uniform(positions, Purpose.ACCEPT if purpose == Purpose.RECOVER else purpose)


def test_200_000_emitted_ids_have_the_frequencies_of_the_target() -> None:
    assert abs(surprise(emitted_counts(RandomStreams(torch.arange(SAMPLES))), P)) < 4


@pytest.mark.parametrize("mutant", [RecoveryWithTheDraftsNoise, VerdictWithTheDraftsNoise, RecoveryWithTheVerdictsNoise])
def test_noise_shared_by_two_purposes_shows_in_the_frequencies(mutant: type[RandomStreams]) -> None:
    assert surprise(emitted_counts(mutant(torch.arange(SAMPLES))), P) > 20


class RecordingStreams(RandomStreams):
    """Keeps (seed, position, purpose) of each draw."""

    def __init__(self, seeds: Tensor) -> None:
        super().__init__(seeds)
        self.keys: list[tuple[int, int, str]] = []
        self.values: list[float] = []

    def uniform(self, positions: Tensor, purpose: Purpose | str) -> Tensor:
        u = super().uniform(positions, purpose)
        for seed, row, values in zip(self.seeds.tolist(), positions.tolist(), u.tolist(), strict=True):
            self.keys += [(seed, position, str(purpose)) for position in row]
            self.values += values
        return u


def test_no_two_draws_of_a_cycle_share_a_key_or_a_value(game: WalkGame) -> None:
    streams, positions = RecordingStreams(torch.tensor([5, 6])), torch.tensor([10, 90])
    uniforms = streams.uniform(positions[:, None] + torch.arange(1, L + 1), Purpose.DRAFT)
    tokens, q = game.sample(uniforms)
    lengths = torch.tensor([L, 2])
    proposal = Proposal(tokens=tokens, lengths=lengths, candidates=game.candidates.expand(2, -1, -1), probs=q)
    verify_sampled(proposal, game.block_p(tokens), streams, positions)
    assert {purpose for _, _, purpose in streams.keys} == set(Purpose)
    for seed, s in ((5, 10), (6, 90)):
        for purpose in Purpose:
            asked = {position for key, position, of in streams.keys if (key, of) == (seed, purpose)}
            last = s + L if purpose == Purpose.DRAFT else s + L + 1
            assert asked == set(range(s + 1, last + 1))
    assert len(set(streams.keys)) == len(streams.keys)
    assert len(set(streams.values)) == len(streams.values)


def first_ids(game: Game, streams: RandomStreams, count: int, advance: bool = True) -> Tensor:
    """Cycle after cycle, rows advancing each at its own pace, until each has `count` ids: [N, count]"""
    N = len(streams.seeds)
    ids = torch.zeros(N, 2 + count + L + 1, dtype=torch.int64)
    ids[:, :2] = torch.tensor(game.output[-2:])
    known = torch.full((N,), 2)
    while (known < 2 + count).any():
        positions = known - 1 if advance else torch.ones_like(known)
        before = ids.gather(1, (known - 2)[:, None] + torch.arange(2))
        uniforms = streams.uniform(positions[:, None] + torch.arange(1, L + 1), Purpose.DRAFT)
        tokens, previous, q = [], before[:, 1], []
        for t in range(L):
            q.append(game.q[t, previous])
            previous = draw(q[-1], uniforms[:, t])
            tokens.append(previous)
        history = torch.cat([before, torch.stack(tokens, 1)], 1)
        p = game.logits[history[:, :-1], history[:, 1:]].softmax(-1)
        proposal = Proposal(tokens=history[:, 2:], lengths=torch.full((N,), L), probs=torch.stack(q, 1))
        verdict = verify_sampled(proposal, p, streams, positions)
        n = verdict.num_accepted[:, None]
        emitted = torch.where(
            torch.arange(L + 1) < n, torch.nn.functional.pad(history[:, 2:], (0, 1)), verdict.next_token[:, None]
        )
        room = (known[:, None] + torch.arange(L + 1)).clamp(max=ids.shape[1] - 1)
        wanted = (torch.arange(L + 1) <= n) & (known[:, None] < 2 + count)
        ids.scatter_(1, room, torch.where(wanted, emitted, ids.gather(1, room)))
        known = torch.where(known < 2 + count, known + n[:, 0] + 1, known)
    return ids[:, 2 : 2 + count]


@pytest.fixture
def table_game() -> Game:
    return Game(logits=normal(5, V, V, V), q=normal(6, L, V, V).softmax(-1))


def law_of_first(game: Game, count: int) -> Tensor:
    laws = replace(game, q=game.q[:1].expand(count - 1, -1, -1)).plain_law()
    joint = laws[0]
    for law in laws[1:]:
        joint = joint[..., None] * law
    return joint


def test_draws_stay_independent_from_cycle_to_cycle(table_game: Game) -> None:
    streams = RandomStreams(torch.arange(40_000))
    assert abs(surprise(counted(first_ids(table_game, streams, 4), V), law_of_first(table_game, 4))) < 4
    assert surprise(counted(first_ids(table_game, streams, 4, advance=False), V), law_of_first(table_game, 4)) > 20


def test_the_same_seed_gives_the_same_ids_in_any_batch_and_another_seed_gives_others(table_game: Game) -> None:
    together = first_ids(table_game, RandomStreams(torch.tensor([3, 11, 12, 13])), 12)
    alone = first_ids(table_game, RandomStreams(torch.tensor([12])), 12)
    assert torch.equal(together[2], alone[0])
    assert len(together.unique(dim=0)) == 4
