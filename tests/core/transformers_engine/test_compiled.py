"""A compiled drafter drafts, in blocks of one shape, and the text stays the target's."""

from collections.abc import Iterator

import pytest
import torch

from dflash2_core import SamplingParams, TransformersEngine
from dflash2_core.errors import CompatibilityError
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


def test_a_drafter_compiles_and_the_text_is_the_targets_own() -> None:
    target = toy_target(num_hidden_layers=3)
    plain = TransformersEngine(target).generate(PROMPTS[0], PARAMS[0])
    drafter = random_drafter(seed=3, **ONE_LAYER)
    compiled = TransformersEngine(target, drafter, compile=True).generate(PROMPTS[0], PARAMS[0])
    assert compiled[0].token_ids == plain[0].token_ids
    assert compiled[0].stats.num_drafted > 100


def test_what_cannot_be_compiled_is_refused_at_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/no/such/compiler",))
    monkeypatch.setattr(config, "force_disable_caches", True)
    target = toy_target(num_hidden_layers=3)
    with pytest.raises(CompatibilityError, match=r"could not be compiled here.*without `compile`"):
        TransformersEngine(target, random_drafter(seed=3, **ONE_LAYER), compile=True)
