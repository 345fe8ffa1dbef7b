"""`dflash2_sglang.law` against SGLang's rules, token by token, and against the core's law where the two are the same."""

import itertools

import pytest
import torch
from torch import Tensor

from dflash2_core import SamplingParams, target_distribution
from dflash2_sglang.law import Filters, Rules, accumulated, penalise, probabilities

V = 37
RULES = (
    Rules(presence_penalty=0.7),
    Rules(frequency_penalty=0.4),
    Rules(repetition_penalty=1.5),
    Rules(min_new_tokens=6, ending_ids=(3, 36, 99)),
    Rules(presence_penalty=-0.3, frequency_penalty=0.2, repetition_penalty=0.8, min_new_tokens=5, ending_ids=(1,)),
)


def filters(temperature: float = 1.0, top_k: int = 1 << 30, top_p: float = 1.0, min_p: float = 0.0, rows: int = 1) -> Filters:
    return Filters(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k, dtype=torch.int32),
        top_p=torch.full((rows,), top_p),
        min_p=torch.full((rows,), min_p),
    )


def by_hand(logits: Tensor, rules: Rules, history: list[int]) -> Tensor:
    """One row, as SGLang's penalizers would leave it after this output."""
    z = logits.clone()
    for token in range(V):
        count = history.count(token)
        if count:
            z[token] -= rules.frequency_penalty * count + rules.presence_penalty
            z[token] = z[token] * rules.repetition_penalty if z[token] < 0 else z[token] / rules.repetition_penalty
        if len(history) < rules.min_new_tokens and token in rules.ending_ids:
            z[token] = -torch.inf
    return z


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("output", [[4], [4, 4, 1, 36], [0] * 9])
def test_penalties_grow_with_the_history_inside_a_block(rules: Rules, output: list[int]) -> None:
    logits = torch.randn(8, V, generator=torch.Generator().manual_seed(1))
    drafts = torch.tensor([4, 4, 1, 30, 4, 0, 36])
    penalised = logits.clone()
    penalise(penalised, rules, output, drafts)
    expected = [by_hand(row, rules, [*output, *drafts[:i].tolist()]) for i, row in enumerate(logits)]
    torch.testing.assert_close(penalised, torch.stack(expected))


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("output", [[4], [4, 4, 1, 36], [0] * 9])
def test_penalties_of_one_place_are_those_of_a_blocks_first_row(rules: Rules, output: list[int]) -> None:
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(5))
    added, scaling = accumulated(rules, output, V)
    z = logits[0] + added
    penalise(logits, rules, output, torch.tensor([], dtype=torch.int64))
    torch.testing.assert_close(torch.where(z < 0, z * scaling, z / scaling), logits[0])


def test_rules_that_ask_nothing_need_no_history() -> None:
    assert not Rules(ending_ids=(1, 2)).need_history
    assert all(rules.need_history for rules in RULES)


@pytest.mark.parametrize(
    ("asked", "params"),
    [
        ({}, {}),
        ({"temperature": 0.3}, {"temperature": 0.3}),
        ({"top_k": 5}, {"top_k": 5}),
        ({"top_p": 0.8}, {"top_p": 0.8}),
        ({"min_p": 0.2}, {"min_p": 0.2}),
        ({"top_k": 1}, {"temperature": 0.0}),
    ],
)
def test_one_filter_alone_is_the_cores(asked: dict[str, float], params: dict[str, float]) -> None:
    logits = torch.randn(1, 8, V, generator=torch.Generator().manual_seed(2)) * 3
    core = target_distribution(
        logits, [SamplingParams(**{"temperature": 1.0, **params})], prompts=[[1]], outputs=[[]], drafts=[[0] * 7]
    )
    torch.testing.assert_close(probabilities(logits, filters(**asked)), core)


def sorted_by_hand(logits: Tensor, temperature: float, k: int, top_p: float, min_p: float) -> Tensor:
    """SGLang's torch sampler for one row, without the draw."""
    p = (logits / temperature).softmax(-1)
    kept, mass = torch.zeros(V), 0.0
    order = sorted(range(V), key=lambda token: -float(p[token]))
    for rank, token in enumerate(order):
        if rank < k and mass <= top_p:
            kept[token] = p[token]
        mass += float(p[token])
    kept[kept < min_p * kept.max()] = 0
    return kept / kept.sum()


def test_filters_together_are_sglangs_in_its_order() -> None:
    generator = torch.Generator().manual_seed(3)
    for temperature, k, top_p, min_p in itertools.product((0.5, 1.3), (2, 7, 1 << 30), (0.5, 0.9, 1.0), (0.0, 0.1)):
        logits = torch.randn(1, 3, V, generator=generator) * 2
        p = probabilities(logits, filters(temperature, k, top_p, min_p))
        expected = torch.stack([sorted_by_hand(row, temperature, k, top_p, min_p) for row in logits[0]])
        torch.testing.assert_close(p[0], expected, atol=1e-6, rtol=1e-5)


def test_greedy_rows_beside_sampled_ones_are_one_hot_at_the_lowest_of_their_best_ids() -> None:
    logits = torch.zeros(2, 2, V)
    logits[:, :, [5, 9]] = 1.0
    mixed = Filters(
        temperature=torch.tensor([1.0, 1.0]),
        top_k=torch.tensor([1, 1 << 30], dtype=torch.int32),
        top_p=torch.ones(2),
        min_p=torch.zeros(2),
    )
    p = probabilities(logits, mixed)
    assert p[0].argmax(-1).tolist() == [5, 5]
    assert p[0].sum() == 2
    torch.testing.assert_close(p[1], logits[1].softmax(-1))
