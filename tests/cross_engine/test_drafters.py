"""Drafters that are no good: the text stays the target's, and the counters say it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dflash2_core import SamplingParams
from dflash2_core.engines import Server
from tests.cross_engine.running import ENGINES, Running
from tests.engines.pair import NEW_TOKENS, thirty_prompts, written_plainly, written_with_drafts
from tests.engines.spoiling import spoilt

GREEDY = SamplingParams(max_new_tokens=NEW_TOKENS)


def at_random(tensors: dict[str, torch.Tensor]) -> None:
    """Every matrix drawn anew."""
    torch.manual_seed(5)
    for name, tensor in tensors.items():
        if tensor.dim() > 1:
            tensors[name] = torch.randn(tensor.shape).mul(0.05).to(tensor.dtype)


def always_the_same(tensors: dict[str, torch.Tensor]) -> None:
    """Next to nothing reaches a slot but its own mask token, and no candidate is preferred by the one before it."""
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "codebook")) or "_conv." in name:
            tensors[name] = tensor * 1e-6


WRONG = {"random": at_random, "constant": always_the_same}


RUNS = [*((engine, "random") for engine in ENGINES), ("llama-cpp", "constant")]
"""A start of vLLM or SGLang takes a minute of a core, so the second one is llama.cpp's alone."""


@pytest.fixture(params=RUNS, ids="-".join)
def server(request: pytest.FixtureRequest, running: Running, tmp_path: Path) -> Iterator[Server]:
    engine, wrong = request.param
    drafter = spoilt(tmp_path / wrong, tensors=WRONG[wrong])
    with running.started(engine, drafter) as started:
        yield started


def test_the_text_is_the_targets_and_the_counters_tell(server: Server) -> None:
    found = server.generate_ids(thirty_prompts(), GREEDY)
    assert [answer.token_ids for answer in found] == [text.token_ids for text in written_plainly()]
    told = server.acceptance()
    sound = sum(text.stats.num_accepted for text in written_with_drafts())
    assert told.num_drafted > 1000
    assert told.num_accepted < 0.5 * sound, "a drafter that is no good shows"
