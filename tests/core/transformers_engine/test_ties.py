"""Equal logits: the lowest id is written, alone, in blocks and beside sampled rows."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dflash2_core import Proposal, SamplingParams, TransformersEngine, Verdict
from dflash2_core.sampling import distribution
from dflash2_core.transformers_engine import Target, judge
from tests.core.toys import oracle, random_drafter, toy_model
from tests.core.transformers_engine.conftest import complete, random_prompt

FITS = {"num_target_layers": 2, "target_layer_ids": (0,)}
PROMPTS = [random_prompt(length, seed=length) for length in (9, 4, 17)]
NEW = 24


@pytest.fixture(scope="module")
def target() -> Target:
    """Its logits are few different numbers, as those of half precision are."""
    model = toy_model(num_hidden_layers=2)
    model.lm_head.register_forward_hook(lambda module, args, logits: (logits / logits.abs().amax(-1, keepdim=True)).round())
    return Target(model)


def lowest_of_the_best(target: Target, prompt: list[int]) -> tuple[list[int], int]:
    """Id by id, without the engine; and how often there was more than one best id."""
    ids, tied = list(prompt), 0
    for _ in range(NEW):
        logits = target.model(torch.tensor([ids])).logits[0, -1].tolist()
        best = [i for i, value in enumerate(logits) if value == max(logits)]
        tied += len(best) > 1
        ids.append(best[0])
    return ids[len(prompt) :], tied


@pytest.fixture(scope="module")
def written(target: Target) -> list[list[int]]:
    texts = [lowest_of_the_best(target, prompt) for prompt in PROMPTS]
    assert sum(tied for _, tied in texts) > NEW, "without ties nothing is tested"
    return [text for text, _ in texts]


def assert_lowest_in_blocks(target: Target, written: list[list[int]]) -> None:
    for prompt, text in zip(PROMPTS, written, strict=True):
        for drafter in (oracle(prompt, text, **FITS), random_drafter(seed=2, **FITS)):
            completion = complete(TransformersEngine(target, drafter), prompt)
            assert completion.token_ids == text
            assert completion.stats.num_drafted > 0


def assert_lowest_beside_a_sampled_row(target: Target, written: list[list[int]]) -> None:
    """In a mixed batch the greedy rows are judged by their distribution too."""
    engine = TransformersEngine(target, random_drafter(seed=2, **FITS), max_batch_size=4)
    greedy = SamplingParams(max_new_tokens=NEW, ignore_eos=True, seed=1)
    sampled = SamplingParams(max_new_tokens=2 * NEW, ignore_eos=True, temperature=1.0, seed=3)
    completions = engine.generate([random_prompt(5, seed=5), *PROMPTS], [sampled, greedy, greedy, greedy])
    assert [c.token_ids for c in completions[1:]] == written
    assert all(c.stats.num_drafted > 0 for c in completions)


def test_blocks_write_the_lowest_of_tied_ids(target: Target, written: list[list[int]]) -> None:
    assert_lowest_in_blocks(target, written)


def test_a_greedy_row_beside_a_sampled_one_writes_the_lowest_of_tied_ids(target: Target, written: list[list[int]]) -> None:
    assert_lowest_beside_a_sampled_row(target, written)


def highest_of_the_best(proposal: Proposal, logits: Tensor) -> Verdict:
    V = logits.shape[-1]
    verdict = verify_greedy(
        Proposal(tokens=V - 1 - proposal.tokens, lengths=proposal.lengths), logits.flip(-1)
    )  # the lowest id of the mirror image
    return Verdict(num_accepted=verdict.num_accepted, next_token=V - 1 - verdict.next_token)


def nearly_zero_temperature(z: Tensor) -> Tensor:
    """Temperature 0 as a very small one: the mass is shared among the tied."""
    return ((z - z.amax(-1, keepdim=True)) / 1e-6).softmax(-1)


verify_greedy = judge.verify_greedy


@pytest.mark.parametrize(
    ("place", "name", "fault", "check"),
    [
        (judge, "verify_greedy", highest_of_the_best, assert_lowest_in_blocks),
        (distribution, "_one_hot", nearly_zero_temperature, assert_lowest_beside_a_sampled_row),
    ],
)
def test_another_rule_for_ties_is_caught(
    place: object,
    name: str,
    fault: Callable[..., object],
    check: Callable[[Target, list[list[int]]], None],
    target: Target,
    written: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, name, fault)
    with pytest.raises(AssertionError):
        check(target, written)
