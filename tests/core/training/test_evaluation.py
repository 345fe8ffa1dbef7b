from itertools import accumulate

import pytest

from dflash2_core import SamplingParams
from dflash2_core.training.documents import Document
from dflash2_core.training.evaluation import evaluate
from dflash2_core.training.loop import Settings, train
from dflash2_core.training.start import new_drafter
from dflash2_core.transformers_engine import Target, TransformersEngine
from tests.core.toys import drafter_config


def cycles_of(engine: TransformersEngine, document: Document) -> int:
    """Cycles that begin inside the document. The engine may write on, so that no budget shortens the last one's block."""
    prompt, length = document.tokens[: document.prompt_length], len(document.tokens) - document.prompt_length
    params = SamplingParams(max_new_tokens=length + 16, ignore_eos=True)
    first, *cycles = (chunk.token_ids for chunk in engine.stream(prompt, params))
    begins = accumulate([len(first), *map(len, cycles[:-1])])
    assert [token for ids in (first, *cycles) for token in ids][:length] == document.tokens[document.prompt_length :]
    return sum(begin < length for begin in begins)


@pytest.mark.parametrize("version", [1, 2])
def test_the_acceptance_length_is_what_the_engine_reaches(target: Target, documents: list[Document], version: int) -> None:
    drafter = new_drafter(drafter_config(version=version, layer_windows=(6, 6)), seed=0)
    for _ in train(drafter, target, documents, [], Settings(steps=25, documents=4, anchors=8, learning_rate=0.01)):
        pass
    drafter.eval()
    engine = TransformersEngine(target, drafter)
    heldout = evaluate(drafter, target, documents)
    assert heldout.num_cycles == sum(cycles_of(engine, document) for document in documents)
    num_tokens = sum(len(document.tokens) - document.prompt_length - 1 for document in documents)
    assert heldout.acceptance_length == pytest.approx(num_tokens / heldout.num_cycles)
    assert heldout.oracle_length >= heldout.acceptance_length > 1.1
    assert len(heldout.recall) == drafter.config.num_drafts
