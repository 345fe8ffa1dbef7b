"""`dflash2 serve --engine vllm`: the exact command, and sentences instead of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions, engine_names, find_engine
from dflash2_core.errors import CheckpointError, CompatibilityError, EngineError
from dflash2_vllm import Vllm
from tests.vllm.engines import PYTHON
from tests.vllm.spoiling import spoilt

TARGET, DRAFTER = tiny_pair().target, tiny_pair().drafter


@pytest.fixture(scope="module")
def engine() -> Vllm:
    return Vllm(PYTHON)


def test_the_adapter_is_found_by_its_name() -> None:
    assert "vllm" in engine_names()
    assert find_engine("vllm", PYTHON).interpreter == PYTHON


def test_a_dry_run_prints_the_command_and_starts_nothing() -> None:
    arguments = ["serve", TARGET, DRAFTER, "--engine", "vllm", "--program", PYTHON, "--port", "8123", "--context", "512"]
    command = [sys.executable, "-m", "dflash2_core.cli", *map(str, arguments), "--dry-run", "--", "--dtype", "float32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert line.startswith(f"{PYTHON} -m vllm.entrypoints.openai.api_server --model {TARGET} --host 127.0.0.1 --port 8123")
    assert '"num_speculative_tokens": 7' in line
    assert "--max-model-len 512" in line
    assert line.endswith(" --dtype float32")


def test_vllm_serve_itself_does_not_start_from_the_cpu_wheel() -> None:
    """Once it does, the adapter can start it in the usual way."""
    done = subprocess.run([PYTHON.with_name("vllm"), "--version"], capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode != 0
    assert "PackageNotFoundError" in done.stderr


def test_the_target_alone_has_nothing_of_drafts_in_its_command(engine: Vllm) -> None:
    assert "spec" not in str(engine.command(TARGET, None, EngineOptions()))


def test_more_drafts_than_a_block_has_are_refused(engine: Vllm) -> None:
    with pytest.raises(CompatibilityError, match="8 drafts were asked for, and a drafter of block size 8 makes 7"):
        engine.command(TARGET, DRAFTER, EngineOptions(num_drafts=8))
    assert '"num_speculative_tokens": 3' in str(engine.command(TARGET, DRAFTER, EngineOptions(num_drafts=3)))


@pytest.mark.parametrize(
    "extra", [("--speculative-config", "{}"), ("--max-num-seqs=3",), ("--port", "1"), ("--max_model_len", "9")]
)
def test_what_the_adapter_says_is_not_said_twice(extra: tuple[str, ...], engine: Vllm) -> None:
    with pytest.raises(EngineError, match="is not handed on to vLLM: (use|it) "):
        engine.command(TARGET, DRAFTER, EngineOptions(extra=extra))


def test_dtype_and_memory_are_said_once(engine: Vllm) -> None:
    said = str(engine.command(TARGET, DRAFTER, EngineOptions(dtype="bfloat16", memory=0.25, extra=("--seed", "3"))))
    assert "--dtype bfloat16 --gpu-memory-utilization 0.25 " in said
    with pytest.raises(EngineError, match="--gpu-memory-utilization is not handed on to vLLM: use dflash2's own --memory"):
        engine.command(TARGET, DRAFTER, EngineOptions(memory=0.4, extra=("--gpu-memory-utilization=0.8",)))
    with pytest.raises(EngineError, match="--dtype is not handed on to vLLM: it is bfloat16 already: use dflash2's own option"):
        engine.command(TARGET, DRAFTER, EngineOptions(dtype="bfloat16", extra=("--dtype=float32",)))
    handed_on = str(engine.command(TARGET, DRAFTER, EngineOptions(extra=("--dtype", "float32"))))
    assert handed_on.count("--dtype") == 1
    assert "memory" not in handed_on


def test_a_pair_that_does_not_fit_is_a_sentence(engine: Vllm, tmp_path: Path) -> None:
    other = spoilt(TARGET, tmp_path / "other", vocab_size=1000, num_hidden_layers=9)
    with pytest.raises(
        CompatibilityError, match="(?s)vocabulary has 1024 ids, the target's 1000.*target of 4 layers, this one has 9"
    ):
        engine.command(other, DRAFTER, EngineOptions())
    with pytest.raises(CompatibilityError, match="is a drafter's folder: expected the target first"):
        engine.command(DRAFTER, TARGET, EngineOptions())
    shutil.copytree(DRAFTER, tmp_path / "broken")
    (tmp_path / "broken/model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        engine.command(TARGET, tmp_path / "broken", EngineOptions())


def test_a_python_without_vllm_is_a_sentence() -> None:
    with pytest.raises(EngineError, match="vLLM is not installed in the environment of"):
        Vllm(Path(sys.executable)).command(TARGET, DRAFTER, EngineOptions())


def test_variables_that_would_turn_the_plugin_off_are_refused(engine: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH2_VLLM", "off")
    with pytest.raises(EngineError, match="DFLASH2_VLLM is off"):
        engine.command(TARGET, DRAFTER, EngineOptions())
    monkeypatch.delenv("DFLASH2_VLLM")
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    with pytest.raises(EngineError, match="VLLM_PLUGINS is 'another', with which vLLM does not load dflash2"):
        engine.command(TARGET, DRAFTER, EngineOptions())


def test_the_interpreter_may_be_named_by_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DFLASH2_VLLM_PYTHON", str(PYTHON))
    assert Vllm().interpreter == PYTHON
    monkeypatch.setenv("DFLASH2_VLLM_PYTHON", str(tmp_path))
    with pytest.raises(EngineError, match="which DFLASH2_VLLM_PYTHON names, is no program"):
        _ = Vllm().interpreter


def test_a_probe_tells_version_route_and_hooks(engine: Vllm) -> None:
    report = engine.probe()
    assert (report.version, report.tested, report.route, report.problems) == ("0.32.0", True, "plugin", ())
    assert set(report.hooks.values()) == {"as expected"}
    assert len(report.hooks) > 10
    assert report.to_dict()["program"] == str(PYTHON)
