"""A compiled drafter drafts, in blocks of one shape, and the text stays the target's."""

from collections.abc import Iterator

import pytest
import torch

from dflash2_core import SamplingParams, TransformersEngine, load_drafter
from dflash2_core.assets import tiny_pair
from dflash2_core.errors import CompatibilityError
from dflash2_core.transformers_engine import Target
from tests.core.toys import random_drafter, toy_target
from tests.core.transformers_engine.conftest import random_prompt

FITS = {"num_target_layers": 3, "target_layer_ids": (1,)}
PROMPTS = [random_prompt(length, seed=length) for length in (30, 1, 9)]
PARAMS = [SamplingParams(max_new_tokens=n, ignore_eos=True, temperature=t, seed=n) for n, t in ((33, 0.0), (9, 1.0), (20, 0.0))]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_rows_of_a_compiled_drafter_are_those_of_the_same_one_as_it_is() -> None:
    """By a backend without a C++ compiler, for time: what is traced, padded and cut is the same."""
    target = toy_target(num_hidden_layers=3)
    drafter = random_drafter(seed=3, **FITS)
    expected = TransformersEngine(target, drafter, max_batch_size=3).generate(PROMPTS, PARAMS)
    drafter.compile(backend="aot_eager")
    compiled = TransformersEngine(target, drafter, max_batch_size=3).generate(PROMPTS, PARAMS)
    for ours, theirs in zip(compiled, expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.stats == theirs.stats
        assert ours.stats.num_drafted > 0


def test_the_trained_drafter_compiles_and_its_text_is_the_targets_own() -> None:
    target = Target.from_pretrained(tiny_pair().target, dtype="float32", device="cpu")
    drafter = load_drafter(tiny_pair().drafter, dtype=torch.float32)
    params = SamplingParams(max_new_tokens=40)
    prompts = ["def area(self):\n", "The sum of 3 and 4 is"]
    plain = TransformersEngine(target).generate(prompts, params)
    compiled = TransformersEngine(target, drafter, compile=True).generate(prompts, params)
    for ours, alone in zip(compiled, plain, strict=True):
        assert ours.token_ids == alone.token_ids
    assert sum(each.stats.num_accepted for each in compiled) > 20


def test_what_cannot_be_compiled_is_refused_at_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/no/such/compiler",))
    monkeypatch.setattr(config, "force_disable_caches", True)
    target = toy_target(num_hidden_layers=3)
    with pytest.raises(CompatibilityError, match=r"could not be compiled here.*without `compile`"):
        TransformersEngine(target, random_drafter(seed=3, **FITS), compile=True)
