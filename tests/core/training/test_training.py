"""A minute of training on the embedded target: what it teaches shows on prompts that it did not use."""

import pytest

from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.training.documents import Document
from dflash2_core.training.evaluation import evaluate
from dflash2_core.training.loop import Settings, train
from dflash2_core.training.regenerate import regenerate
from dflash2_core.training.shape import Shape, config_for
from dflash2_core.training.start import copy_from_target, new_drafter
from dflash2_core.transformers_engine import Target


@pytest.fixture(scope="module")
def tiny_target() -> Target:
    return Target.from_pretrained(tiny_pair().target)


def answers(target: Target, prompts: list[str]) -> list[Document]:
    assert target.tokenizer is not None
    ids = [target.tokenizer(prompt)["input_ids"] for prompt in prompts]
    return list(regenerate(target, ids, temperatures=[0.0], max_new_tokens=64, batch_size=32, seed=0))


def test_a_minute_of_training_raises_the_acceptance_length(tiny_target: Target) -> None:
    prompts = [entry["text"] for entry in held_out_prompts()]
    seen, unseen = answers(tiny_target, prompts[0::3]), answers(tiny_target, prompts[1::12])
    drafter = new_drafter(config_for(tiny_target, Shape(window=64)), seed=0)
    copy_from_target(drafter, tiny_target)
    before = evaluate(drafter, tiny_target, unseen).acceptance_length

    settings = Settings(steps=60, documents=4, anchors=16, optimizer="muon", learning_rate=2e-3)
    losses = [record["total"] for record in train(drafter, tiny_target, seen, [], settings)]

    after = evaluate(drafter, tiny_target, unseen)
    assert after.acceptance_length > before + 0.2
    assert after.oracle_length > after.acceptance_length
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
