"""The losses against their formulas, one number at a time."""

import math

import pytest
import torch

from dflash2_core.drafter import best_candidates
from dflash2_core.training.losses import (
    chosen_candidates,
    position_weights,
    selector_losses,
    soft_selector_losses,
    teacher_forced_scores,
    total_variations,
    unary_losses,
    weighted_mean,
)

R, L, V, K, RANK = 3, 4, 11, 5, 6


@pytest.fixture
def tables() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "logits": torch.randn(R, L, V, generator=generator),
        "target_logits": torch.randn(R, L, V, generator=generator),
        "gate": torch.randn(R, L, RANK, generator=generator),
        "A": torch.randn(V, RANK, generator=generator),
        "B": torch.randn(V, RANK, generator=generator),
        "labels": torch.randint(V, (R, L), generator=generator),
        "predecessors": torch.randint(V, (R, L), generator=generator),
    }


def scores_of(t: dict[str, torch.Tensor], candidates: torch.Tensor) -> torch.Tensor:
    return teacher_forced_scores(t["logits"], candidates, t["gate"], t["predecessors"], t["A"], t["B"])


@pytest.mark.parametrize(("block_size", "gamma"), [(16, 7), (10, 5), (8, 4)])
def test_the_weights_are_those_of_the_public_recipe(block_size: int, gamma: int) -> None:
    expected = [math.exp(-(k - 1) / gamma) for k in range(1, block_size)]
    assert position_weights(block_size).tolist() == pytest.approx(expected)


def test_every_loss_equals_brute_force(tables: dict[str, torch.Tensor]) -> None:
    t = tables
    candidates = best_candidates(t["logits"], K)[1]
    scores = scores_of(t, candidates)
    unary, selector = unary_losses(t["logits"], t["labels"]), selector_losses(scores, candidates, t["labels"])
    p = t["target_logits"].softmax(-1)
    tv = total_variations(scores, p.gather(-1, candidates))
    soft_unary, soft_selector = unary_losses(t["logits"], p), soft_selector_losses(scores, p.gather(-1, candidates))
    for r in range(R):
        for i in range(L):
            label, before = int(t["labels"][r, i]), t["predecessors"][r, i]
            assert unary[r, i].item() == pytest.approx(-t["logits"][r, i].log_softmax(-1)[label].item(), abs=1e-5)
            S = {
                b: (t["logits"][r, i, b] + (t["A"][before] * t["gate"][r, i]) @ t["B"][b]).item()
                for b in candidates[r, i].tolist()
            }
            total = sum(math.exp(s) for s in S.values())
            expected = math.log(total) - S[label] if label in S else math.inf
            assert selector[r, i].item() == pytest.approx(expected, abs=1e-4)
            q = t["logits"][r, i].softmax(-1)
            whole = -sum(p[r, i, b].item() * math.log(q[b]) for b in range(V))
            assert soft_unary[r, i].item() == pytest.approx(whole, abs=1e-5)
            of_candidates = sum(p[r, i, b].item() * (math.log(total) - s) for b, s in S.items())
            assert soft_selector[r, i].item() == pytest.approx(of_candidates, abs=1e-4)
            overlap = sum(min(p[r, i, b].item(), math.exp(s) / total) for b, s in S.items())
            assert tv[r, i].item() == pytest.approx(1 - overlap, abs=1e-5)


def test_an_injected_label_takes_the_last_place_only_where_it_is_missing(tables: dict[str, torch.Tensor]) -> None:
    plain = chosen_candidates(tables["logits"], tables["labels"], K, "skip")
    injected = chosen_candidates(tables["logits"], tables["labels"], K, "inject")
    missing = (plain != tables["labels"][..., None]).all(-1)
    assert missing.any()
    assert not missing.all()
    assert torch.equal(plain[~missing], injected[~missing])
    assert torch.equal(plain[..., :-1], injected[..., :-1])
    assert torch.equal(injected[..., -1][missing], tables["labels"][missing])
    assert selector_losses(scores_of(tables, injected), injected, tables["labels"]).isfinite().all()


def test_infinite_losses_without_weight_do_not_reach_the_mean_or_the_gradient() -> None:
    scores = torch.zeros(1, 2, 3, requires_grad=True)
    candidates, labels = torch.tensor([[[0, 1, 2], [0, 1, 2]]]), torch.tensor([[1, 9]])
    losses = selector_losses(scores, candidates, labels)
    mean = weighted_mean(losses, losses.isfinite().float())
    mean.backward()
    assert mean.item() == pytest.approx(math.log(3))
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_identical_distributions_over_all_candidates_have_no_variation() -> None:
    logits = torch.randn(2, 3, V)
    assert total_variations(logits, logits.softmax(-1)).abs().max() < 1e-6
