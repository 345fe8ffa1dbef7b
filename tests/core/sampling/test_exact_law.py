"""Verification is lossless: the exact law of the emitted ids, over all draws, is the law of plain sampling."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dflash2_core.proposal import Proposal
from dflash2_core.sampling import Purpose, SamplingParams, verification, verify_sampled
from tests.core.sampling.exact_law import TOP, Cycle, Game, emitted_law, pieces, plain_joint

V, L, K = 5, 3, 3
EXACT = 1e-9


def candidate_game(seed: int = 0, V: int = V, L: int = L, **changes: object) -> Game:
    """A random target of the last two ids; a drafter that has half an idea of it and sees K ids in each slot."""
    game = full_game(seed, V, L)
    candidates = torch.stack([torch.randperm(V, generator=torch.Generator().manual_seed(seed + t))[:K] for t in range(L)])
    return replace(game, q=narrowed(game.q, candidates), candidates=candidates, **changes)


def full_game(seed: int = 0, V: int = V, L: int = L, **changes: object) -> Game:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(V, V, V, generator=generator).double() * 1.2
    guess = logits.mean(0) + torch.randn(L, V, V, generator=generator).double() * 0.8
    return replace(Game(logits=logits, q=guess.softmax(-1)), **changes)


def narrowed(q: Tensor, candidates: Tensor) -> Tensor:
    """q [L, V, V] over the candidates [L, K] only, renormalised."""
    q = q.gather(-1, candidates[:, None].expand(-1, q.shape[1], -1))
    return q / q.sum(-1, keepdim=True)


def sampling(**options: object) -> SamplingParams:
    return SamplingParams(temperature=options.pop("temperature", 1.0), **options)


def best_outside_game() -> Game:
    """The target's favourite is in no slot's candidates."""
    game = full_game(3)
    candidates = torch.tensor([0, 2, 3]).expand(L, K)
    logits = game.logits.clone()
    logits[..., 4] += 1.0
    return replace(game, logits=logits, q=narrowed(game.q, candidates), candidates=candidates)


def drafter_knows_p_game() -> Game:
    """q is p itself: nothing is ever rejected and every residual is zero."""
    logits = full_game(4).logits[:1].expand(V, V, V)
    return Game(logits=logits, q=logits[0].softmax(-1).expand(L, V, V))


def impossible_ids_game() -> Game:
    """q has zeros where p has mass, and mass where p has zeros."""
    game = full_game(5, params=sampling(logit_bias={0: -torch.inf}))
    q = game.q.clone()
    q[..., 1] = 0
    return replace(game, q=q / q.sum(-1, keepdim=True))


def never_the_last_id_again(history: Tensor, logits: Tensor) -> Tensor:
    logits[history[-1]] = -torch.inf
    return logits


GAMES = {
    "candidates": candidate_game(0),
    "candidates, another table": candidate_game(1),
    "candidates, V = 8": candidate_game(2, V=8, L=2),
    "candidates, block of 2": candidate_game(2, V=4, L=1),
    "argmax": candidate_game(0, argmax=True),
    "argmax over all ids": full_game(1, argmax=True),
    "full vocabulary": full_game(0),
    "best id outside the candidates": best_outside_game(),
    "zero residual": drafter_knows_p_game(),
    "p(x) = 0 and q(x) = 0": impossible_ids_game(),
    "temperature": candidate_game(6, params=sampling(temperature=0.6)),
    "top-p": candidate_game(7, params=sampling(top_p=0.7)),
    "top-p, full vocabulary": full_game(7, params=sampling(top_p=0.7)),
    "top-p, argmax": candidate_game(7, params=sampling(top_p=0.7), argmax=True),
    "top-k": candidate_game(8, params=sampling(top_k=2)),
    "min-p": candidate_game(9, params=sampling(min_p=0.3)),
    "all filters": candidate_game(9, params=sampling(temperature=1.3, top_k=4, top_p=0.9, min_p=0.05)),
    "penalties": candidate_game(
        10, params=sampling(repetition_penalty=1.6, presence_penalty=0.4, frequency_penalty=0.7, logit_bias={3: 0.8})
    ),
    "penalties, argmax": candidate_game(10, params=sampling(repetition_penalty=2.0), argmax=True),
    "logits processor": candidate_game(11, params=sampling(logits_processor=never_the_last_id_again)),
    "greedy row, sampled proposal": candidate_game(15, params=SamplingParams()),
    "greedy row, argmax proposal": candidate_game(15, params=SamplingParams(), argmax=True),
    "no drafts": candidate_game(13, length=0),
    "1 draft of 3": candidate_game(13, length=1),
    "2 drafts of 3": full_game(13, length=2),
    "2 argmax drafts of 3": candidate_game(13, length=2, argmax=True),
}


def distance(law: Tensor, plain: Tensor) -> float:
    return (law - plain).abs().max().item()


@pytest.mark.parametrize("name", GAMES)
def test_the_emitted_ids_have_the_law_of_plain_sampling(name: str) -> None:
    game = GAMES[name]
    law, plain = emitted_law(game), plain_joint(game)
    assert plain.sum().item() == pytest.approx(1, abs=1e-12)
    assert law.joint.dim() == game.drafts + 1
    assert distance(law.joint, plain) < EXACT
    assert law.mean_accepted > 0.1 or game.drafts == 0


@pytest.mark.parametrize("name", ["candidates", "full vocabulary", "argmax", "top-p"])
def test_the_measured_pieces_foretell_the_code_at_random_draws(name: str) -> None:
    """The sum treats each draw on its own; here all are random at once."""
    cycle, M = Cycle(GAMES[name]), 5000
    generator = torch.Generator().manual_seed(0)
    item = torch.randint(len(cycle.paths.ids), (M,), generator=generator)
    accept, recover, bonus = (torch.rand(M, size, generator=generator).double() for size in (L, 1, 1))
    drafted = ((cycle.paths.low + cycle.paths.high) / 2)[item]
    verdict = cycle(item, drafted, accept, recover[:, 0], bonus[:, 0])
    n, slot = verdict.num_accepted[:, None], torch.arange(L)
    summed_with = torch.where(slot < n, 0.0, torch.where(slot == n, accept, TOP))
    nan = torch.full((M, 1), torch.nan)
    recover, bonus = torch.where(n < L, recover, nan), torch.where(n == L, bonus, nan)
    alone = cycle(item, drafted, summed_with, recover[:, 0], bonus[:, 0])
    assert len(n.unique()) > 2
    assert torch.equal(alone.num_accepted, verdict.num_accepted)
    assert torch.equal(alone.next_token, verdict.next_token)


def test_pieces_finds_every_step() -> None:
    steps = torch.tensor([[0.1, 0.35, 0.351, 0.9], [0.2, 0.3, 0.31, 1.0]], dtype=torch.float64)
    item, start, end, outcome = pieces(lambda i, u: (u[:, None] >= steps[i]).sum(-1), torch.zeros(2), torch.ones(2))
    assert item.tolist() == [0] * 5 + [1] * 4
    assert start.tolist() == [0, *steps[0].tolist(), 0, *steps[1, :3].tolist()]
    assert end[4] == 1
    assert outcome.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_argmax_drafts_stand_longer_than_slots_sampled_alone_on_a_correlated_law() -> None:
    follows = torch.full((V, V), 0.0125).double()
    follows[torch.arange(V), (torch.arange(V) + 1) % V] = 0.95
    slots = [follows[1]]
    for _ in range(L - 1):
        slots.append(slots[-1] @ follows)
    correlated = Game(logits=follows.log().expand(V, V, V), q=follows.expand(L, V, V), argmax=True)
    alone = Game(logits=correlated.logits, q=torch.stack(slots)[:, None].expand(L, V, V))
    law, law_alone = emitted_law(correlated), emitted_law(alone)
    assert distance(law.joint, plain_joint(correlated)) < EXACT
    assert distance(law_alone.joint, plain_joint(alone)) < EXACT
    assert law.mean_accepted > law_alone.mean_accepted


# Faults put back. Each must be seen by the same sum.


def softmax_q_for_an_argmax_walk(game: Game):
    def verify(proposal: Proposal, probs: Tensor, streams, positions: Tensor):
        before = torch.cat([torch.full_like(proposal.tokens[:, :1], game.output[-1]), proposal.tokens[:, :-1]], 1)
        q = game.q[torch.arange(game.L), before]
        candidates = game.candidates.expand(len(q), -1, -1)
        return verify_sampled(replace(proposal, candidates=candidates, probs=q), probs, streams, positions)

    return verify


def draft_noise_reused_for_recovery(game: Game):
    class SharedNoise:
        def __init__(self, streams) -> None:
            self.streams = streams

        def uniform(self, positions: Tensor, purpose: Purpose) -> Tensor:
            return self.streams.uniform(positions, Purpose.DRAFT if purpose == Purpose.RECOVER else purpose)

    return lambda proposal, probs, streams, positions: verify_sampled(proposal, probs, SharedNoise(streams), positions)


def patched(name: str, fault):
    """verify_sampled with one of its parts replaced by fault(the part)."""

    def verify(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verification, name, fault(getattr(verification, name)))
            return verify_sampled(*arguments)

    return lambda game: verify


def residual_over_the_candidates_only(honest):
    def fault(proposal: Proposal, probs: Tensor, n: Tensor, rejected: Tensor) -> Tensor:
        residual = honest(proposal, probs, n, rejected)
        row = n.clamp(max=proposal.tokens.shape[1] - 1)
        known = torch.zeros_like(residual).scatter(1, proposal.candidates[torch.arange(len(n)), row], 1.0)
        kept = residual * torch.where(rejected[:, None], known, 1.0)
        return torch.where(kept.sum(-1, keepdim=True) > 0, kept, residual)

    return fault


def bonus_from_the_row_before(honest):
    return lambda proposal, probs, n, rejected: honest(proposal, probs, torch.where(rejected, n, n - 1), rejected)


def recovery_from_the_row_after(honest):
    return lambda proposal, probs, n, rejected: torch.where(
        rejected[:, None], honest(proposal, probs.roll(-1, 1), n, rejected), honest(proposal, probs, n, rejected)
    )


def p_of_the_row_after(honest):
    return lambda probs, tokens: honest(probs.roll(-1, 1), tokens)


def q_not_subtracted(honest):
    return lambda p, proposal, row, rejected: p


MUTANTS = {
    "softmax q for an argmax walk": (softmax_q_for_an_argmax_walk, "argmax"),
    "draft noise reused for recovery": (draft_noise_reused_for_recovery, "full vocabulary"),
    "draft noise reused, candidates": (draft_noise_reused_for_recovery, "candidates"),
    "residual over K only": (patched("_next_distribution", residual_over_the_candidates_only), "candidates"),
    "bonus from the row before": (patched("_next_distribution", bonus_from_the_row_before), "candidates"),
    "recovery from the row after": (patched("_next_distribution", recovery_from_the_row_after), "candidates"),
    "p of the row after": (patched("_at", p_of_the_row_after), "argmax"),
    "q not subtracted": (patched("_subtract_draft_distribution", q_not_subtracted), "candidates"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_put_back_is_seen(name: str) -> None:
    mutant, game = MUTANTS[name][0], GAMES[MUTANTS[name][1]]
    assert distance(emitted_law(game, mutant(game)).joint, plain_joint(game)) > 1e-3
