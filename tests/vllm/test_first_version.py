"""DFlash 1 drafts through vLLM's own code; what this project mends in the engine's CPU build makes it right too."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dflash2_core import DrafterConfig, load_drafter, save_drafter
from dflash2_core.assets import tiny_pair
from dflash2_core.drafter import Drafter
from tests.vllm.conftest import ROOMY
from tests.vllm.engines import NEW_TOKENS, Ran, VllmProcess
from tests.vllm.test_greedy import differing_blocks
from tests.vllm.test_sampled import law_of, written


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Drafter:
    """The embedded drafter without its selector and its convolutions: each slot's own best, in the same layers."""
    whole = load_drafter(tiny_pair().drafter, dtype=torch.float32)
    options = whole.config.to_dict()
    options["architectures"] = ["DFlashDraftModel"]
    for name in ("conv_group_size", "conv_kernel_size", "selector_rank", "selector_top_k"):
        options["dflash_config"].pop(name)
    drafter = Drafter(DrafterConfig.from_dict(options))
    kept = {name: tensor for name, tensor in whole.state_dict().items() if name in drafter.state_dict()}
    drafter.load_state_dict(kept)
    return drafter.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def engine(first: Drafter, tmp_path_factory: pytest.TempPathFactory, logs: Path) -> Iterator[VllmProcess]:
    folder = tmp_path_factory.mktemp("first")
    save_drafter(first, folder)
    asked = {
        "method": "dflash",
        "model": str(folder),
        "num_speculative_tokens": 7,
        "draft_sample_method": "probabilistic",
    }
    with VllmProcess(logs / "first.log", speculative_config=asked, **ROOMY) as started:
        yield started


def test_drafts_are_the_cores_and_texts_plain_vllms(
    engine: VllmProcess, first: Drafter, prompts: list[list[int]], by_plain_vllm: Ran
) -> None:
    ran = engine.generate(prompts, temperature=0, max_tokens=NEW_TOKENS)
    assert ran.ids == by_plain_vllm.ids
    assert ran.accepted_tokens > 0
    compared, differing = differing_blocks(ran, prompts, of=first)
    assert compared > 400
    assert differing == 0


def test_twenty_thousand_tokens_are_the_targets_own(engine: VllmProcess, prompts: list[list[int]]) -> None:
    texts, ran = written(engine, prompts[:20], 180, 3)
    report = law_of(texts)
    assert report.num_tokens >= 20_000
    assert report.lossless, str(report)
    print("acceptance length", ran.acceptance_length)
    assert ran.acceptance_length > 1.2
