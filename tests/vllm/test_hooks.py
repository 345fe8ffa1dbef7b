"""The table of hooks holds for the installed vLLM; where one differs, nothing is changed and vLLM serves on."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash2_core.assets import tiny_pair
from tests.vllm.conftest import ROOMY
from tests.vllm.engines import DRAFTED, EXACT, NEW_TOKENS, PYTHON, Ran, VllmProcess

GREEDY = {"temperature": 0, "max_tokens": NEW_TOKENS}


@pytest.fixture(scope="module")
def foreign(logs: Path) -> Iterator[VllmProcess]:
    """A vLLM one of whose hooks takes something else."""
    with VllmProcess(logs / "foreign.log", prelude="another_hook", **ROOMY) as engine:
        yield engine


def test_every_hook_is_as_the_table_says(plain: VllmProcess) -> None:
    """Asked in a process in which the plugin changed nothing."""
    states = plain.ask("facts")["hooks"]
    assert set(states.values()) == {"as expected"}
    assert len(states) > 10


def test_the_faults_are_there_and_are_mended_where_the_plugin_is_on(plain: VllmProcess, drafted: VllmProcess) -> None:
    """Once vLLM's own pass the probes, this tells."""
    untouched, mended = (engine.ask("facts")["where"] for engine in (plain, drafted))
    assert len(mended) == 5
    assert not any("dflash2_vllm" in file for file in untouched.values())
    assert all(file.endswith("dflash2_vllm/mends.py") for file in mended.values())


def test_a_hook_that_differs_is_one_line_and_vllm_serves_on(
    foreign: VllmProcess, prompts: list[list[int]], by_plain_vllm: Ran
) -> None:
    assert foreign.generate(prompts[:8], **GREEDY).ids == by_plain_vllm.ids[:8]
    [line] = [line for line in foreign.log.read_text().splitlines() if "dflash2" in line and "changes nothing" in line]
    assert "changes nothing in vLLM 0.32.0" in line
    assert "DFlashProposer.set_inputs_first_pass takes (self, batch) and not (self, target_token_ids," in line
    assert "Mend: install vLLM 0.32.0, or a dflash2 made for this one" in line
    assert not any("dflash2_vllm" in file for file in foreign.ask("facts")["where"].values())


@pytest.mark.parametrize("how", ["foreign", "plain"])
def test_vllm_without_the_plugin_refuses_dflash2_by_itself(how: str, request: pytest.FixtureRequest) -> None:
    """A hook that differs, and the plugin turned off: never does DFlash 2 run as DFlash 1."""
    engine: VllmProcess = request.getfixturevalue(how)
    asked = DRAFTED | {"num_speculative_tokens": 7}
    found = engine.ask("configure", model=str(tiny_pair().target), speculative_config=asked, **EXACT)
    assert "Model Runner V1 does not support: DFlash candidate-head drafts" in found["refused"]


def test_installing_dflash2_changes_no_package_of_the_environment(tmp_path: Path) -> None:
    """With all its dependencies: pip would add nothing and change nothing but dflash2 itself."""
    report = tmp_path / "report.json"
    options = ("--dry-run", "--quiet", "--no-build-isolation", "--report", report)
    command = [PYTHON, "-m", "pip", "install", *options, Path(__file__).parents[2]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    planned = [entry["metadata"]["name"] for entry in json.loads(report.read_text())["install"]]
    assert planned == ["dflash2"]
