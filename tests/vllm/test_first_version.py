"""DFlash 1 drafts through vLLM's own code; what this project mends in the engine's CPU build makes it right too."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dflash2_core import load_drafter
from tests.engines.first_version import exercises, first_version
from tests.vllm.conftest import ROOMY
from tests.vllm.engines import NEW_TOKENS, Ran, VllmProcess
from tests.vllm.test_greedy import differing_blocks
from tests.vllm.test_sampled import law_of, written


@pytest.fixture(scope="module")
def engine(logs: Path) -> Iterator[VllmProcess]:
    asked = {
        "method": "dflash",
        "model": str(first_version()),
        "num_speculative_tokens": 7,
        "draft_sample_method": "probabilistic",
    }
    with VllmProcess(logs / "first.log", speculative_config=asked, **ROOMY) as started:
        yield started


def test_drafts_are_the_cores_and_texts_plain_vllms(engine: VllmProcess, prompts: list[list[int]], by_plain_vllm: Ran) -> None:
    ran = engine.generate(prompts, temperature=0, max_tokens=NEW_TOKENS)
    assert ran.ids == by_plain_vllm.ids
    assert ran.accepted_tokens > 0
    compared, differing = differing_blocks(ran, prompts, of=load_drafter(first_version(), dtype=torch.float32))
    assert compared > 400
    assert differing == 0


def test_twenty_thousand_tokens_are_the_targets_own(engine: VllmProcess) -> None:
    """Of exercises, to their ends: see `first_version`."""
    texts, ran = written(engine, exercises(), 100, 3, past_the_end=False)
    report = law_of(texts)
    assert report.num_tokens >= 20_000
    assert report.lossless, str(report)
    print("acceptance length", ran.acceptance_length)
    assert ran.acceptance_length > 1.8, ran.acceptance_length
