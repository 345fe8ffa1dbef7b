"""A compiled drafter drafts, in blocks of one shape, and the text stays the target's."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from dflash2_core import SamplingParams, TransformersEngine
from dflash2_core.drafter import Drafter, compiling
from dflash2_core.errors import CompatibilityError
from dflash2_core.transformers_engine import Target
from tests.core.toys import random_drafter, toy_target
from tests.core.transformers_engine.conftest import random_prompt

ONE_LAYER = {"num_target_layers": 3, "target_layer_ids": (1,), "num_hidden_layers": 1}  # compiling takes its time
PROMPTS = [random_prompt(length, seed=length) for length in (30, 9)]
PARAMS = [SamplingParams(max_new_tokens=n, ignore_eos=True, temperature=t, seed=n) for n, t in ((33, 0.0), (9, 1.0))]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_rows_of_a_compiled_drafter_are_those_of_the_same_one_as_it_is() -> None:
    """By a backend that compiles nothing, for time: what is traced, padded and cut is the same."""
    target = toy_target(num_hidden_layers=3)
    drafter = random_drafter(seed=3, **ONE_LAYER)
    expected = TransformersEngine(target, drafter, max_batch_size=2).generate(PROMPTS, PARAMS)
    drafter.compile(backend="eager")
    compiled = TransformersEngine(target, drafter, max_batch_size=2).generate(PROMPTS, PARAMS)
    for ours, theirs in zip(compiled, expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.stats == theirs.stats
        assert ours.stats.num_drafted > 0


def test_programs_belong_to_one_drafter_and_one_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are constants of them, and few conditions are asked: whatever was compiled before, the right ones are used."""
    monkeypatch.setattr(compiling, "FOR_FEW_ROWS", {})
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # traced as ever, and not translated
    targets = [toy_target(num_hidden_layers=3, seed=seed) for seed in (0, 1)]
    drafters = [random_drafter(seed=seed, **ONE_LAYER) for seed in (3, 4)]
    pairs = [(targets[0], drafters[0]), (targets[1], drafters[0]), (targets[0], drafters[1])]
    expected = [drafted(*pair) for pair in pairs]
    assert len(set(expected)) == len(pairs), "any of them would do"
    for each in drafters:
        each.compile()
    assert [drafted(*pair) for pair in (*pairs, pairs[0])] == [*expected, expected[0]]


def test_a_drafter_compiles_and_drafts_as_it_did() -> None:
    target, drafter = toy_target(num_hidden_layers=3), random_drafter(seed=3, **ONE_LAYER)
    expected = drafted(target, drafter)
    TransformersEngine(target, drafter, compile=True)
    assert drafted(target, drafter) == expected


def drafted(target: Target, drafter: Drafter) -> tuple[int, ...]:
    """A block after features of some tokens."""
    context, config = drafter.new_context(), drafter.config
    context.join()
    features = torch.randn(
        1,
        config.block_size,
        len(config.target_layer_ids) * config.target_hidden_size,
        generator=torch.Generator().manual_seed(0),
    )
    context.append(features, [5])
    proposal = drafter.propose(
        context,
        torch.tensor([7]),
        [config.num_drafts],
        embed=target.embed,
        head=target.head,
        temperature=torch.zeros(1),
        streams=None,
    )
    return tuple(proposal.tokens[0].tolist())


def test_what_cannot_be_compiled_is_refused_at_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/no/such/compiler",))
    monkeypatch.setattr(config, "force_disable_caches", True)
    target = toy_target(num_hidden_layers=3)
    with pytest.raises(CompatibilityError, match=r"could not be compiled here.*without `compile`"):
        TransformersEngine(target, random_drafter(seed=3, **ONE_LAYER), compile=True)
