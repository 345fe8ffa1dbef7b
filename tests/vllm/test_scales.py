"""A drafter in speculators' layout whose file says scales, on a vLLM of another number, and the plugin on.

One engine shows all three, since each would take a start of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dflash2_core import load_drafter, save_drafter
from dflash2_core.assets import tiny_pair
from dflash2_core.drafter import Drafter
from tests.vllm.conftest import ROOMY
from tests.vllm.engines import NEW_TOKENS, Ran, VllmProcess
from tests.vllm.spoiling import spoilt
from tests.vllm.test_greedy import differing_blocks

SCALES = {"output_multiplier": 0.8, "final_logit_softcapping": 15.0, "input_embedding_scale": 16.0}


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded drafter's weights, which were made for other scales and so draft a little worse."""
    folder = tmp_path_factory.mktemp("scaled")
    save_drafter(load_drafter(tiny_pair().drafter, dtype=torch.float32), folder / "plain", layout="speculators")
    return spoilt(folder / "plain", folder / "scaled", **SCALES)


@pytest.fixture(scope="module")
def engine(scaled: Path, logs: Path) -> Iterator[VllmProcess]:
    asked = {"method": "dflash", "model": str(scaled)}
    log, on = logs / "version.log", {"DFLASH2_VLLM": "on"}
    with VllmProcess(log, environment=on, prelude="another_version", speculative_config=asked, **ROOMY) as started:
        yield started


@pytest.fixture(scope="module")
def ran(engine: VllmProcess, prompts: list[list[int]]) -> Ran:
    return engine.generate(prompts[:10], temperature=0, max_tokens=NEW_TOKENS)


def test_texts_are_plain_vllms(ran: Ran, by_plain_vllm: Ran) -> None:
    assert ran.ids == by_plain_vllm.ids[:10]
    assert 0 < ran.accepted_tokens < ran.draft_tokens


def test_drafts_are_the_cores_with_scale_softcap_and_embedding_scale(ran: Ran, scaled: Path, prompts: list[list[int]]) -> None:
    compared, differing = differing_blocks(ran, prompts[:10], of=load_drafter(scaled, dtype=torch.float32))
    assert compared > 150
    assert differing == 0


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_that_was_lost_would_show(scale: str, ran: Ran, scaled: Path, prompts: list[list[int]], tmp_path: Path) -> None:
    without: Drafter = load_drafter(spoilt(scaled, tmp_path / "without", **{scale: None}), dtype=torch.float32)
    _, differing = differing_blocks(ran, prompts[:10], of=without)
    assert differing > 0


def test_another_version_that_looks_the_same_is_said(engine: VllmProcess) -> None:
    said = [line for line in engine.log.read_text().splitlines() if "was tested with vLLM" in line]
    assert len(said) == 1
    assert "was tested with vLLM 0.32.0, this is 0.31.9: what it touches looks the same" in said[0]


def test_the_plugin_turned_on_asks_for_the_runner_that_it_drafts_in(engine: VllmProcess, drafted: VllmProcess) -> None:
    assert engine.ask("facts")["v2"] == "0"
    assert engine.ask("facts")["proposer"] == "DFlash2Proposer"
    assert drafted.ask("facts")["v2"] is None
