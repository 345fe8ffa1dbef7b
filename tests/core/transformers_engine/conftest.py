"""A toy target, prompts for it, and what it writes alone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from dflash2_core import Completion, Drafter, SamplingParams, TransformersEngine, load_drafter
from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.transformers_engine import Target
from tests.core.toys import EOS, toy_target

NEW = 24


def random_prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(EOS - 1), k=length)


def complete(engine: TransformersEngine, prompt: Sequence[int], **options: object) -> Completion:
    """One prompt, with the options of SamplingParams; greedy and past every end of sequence unless they say otherwise."""
    params = SamplingParams(**{"max_new_tokens": NEW, "ignore_eos": True} | options)  # type: ignore[arg-type]
    (completion,) = engine.generate([list(prompt)], params)
    return completion


@pytest.fixture(scope="session")
def target() -> Target:
    return toy_target()


@dataclass
class Trained:
    """The embedded pair in float32, and at least 200 held-out prompts of 1 to 200 ids."""

    target: Target
    drafter: Drafter
    prompts: list[list[int]]


@pytest.fixture(scope="session")
def trained() -> Trained:
    target = Target.from_pretrained(tiny_pair().target, dtype=torch.float32, device="cpu")
    assert target.tokenizer is not None
    encoded = [target.tokenizer(prompt["text"])["input_ids"] for prompt in held_out_prompts()]
    prompts = [ids[: 1 + 199 * i // (len(encoded) - 1)] for i, ids in enumerate(encoded)]
    return Trained(target, load_drafter(tiny_pair().drafter, dtype=torch.float32), prompts)
