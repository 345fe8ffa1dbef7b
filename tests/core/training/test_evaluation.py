import pytest

from dflash2_core import AcceptanceStats, SamplingParams
from dflash2_core.training.documents import Document
from dflash2_core.training.evaluation import evaluate
from dflash2_core.training.loop import Settings, train
from dflash2_core.training.start import new_drafter
from dflash2_core.transformers_engine import Target, TransformersEngine
from tests.core.toys import drafter_config


@pytest.mark.parametrize("version", [1, 2])
def test_the_acceptance_length_is_what_the_engine_reaches(target: Target, documents: list[Document], version: int) -> None:
    drafter = new_drafter(drafter_config(version=version, layer_windows=(6, 6)), seed=0)
    for _ in train(drafter, target, documents, [], Settings(steps=25, documents=4, anchors=8, learning_rate=0.01)):
        pass
    drafter.eval()
    prompts = [document.tokens[: document.prompt_length] for document in documents]
    completions = TransformersEngine(target, drafter).generate(prompts, SamplingParams(max_new_tokens=24))
    stats = AcceptanceStats.total(completion.stats for completion in completions)

    heldout = evaluate(drafter, target, documents)

    # Each text ends at the budget: there the engine drafts a shorter block, and MASK rows that are not there are not seen.
    assert abs(heldout.num_cycles - stats.num_target_passes) <= len(documents) / 2
    assert heldout.acceptance_length * heldout.num_cycles == pytest.approx(stats.num_committed + stats.skipped.total())
    assert heldout.oracle_length >= heldout.acceptance_length > 1.1
    assert len(heldout.recall) == drafter.config.num_drafts
