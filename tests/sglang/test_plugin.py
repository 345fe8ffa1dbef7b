"""The plugin in SGLang's own Python: the table of hooks holds; where it does not, nothing is changed and one line says why."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dflash2_sglang import Sglang
from dflash2_sglang.hooks import AS_EXPECTED, CHOICES, HOOKS, TESTED
from tests.sglang.servers import ENVIRONMENT, PYTHON, ROOT

CPU = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
MISSING = "import sglang.srt.speculative.dflash_worker_v2 as w; del w.DFlashWorkerV2._accept_block"
CHANGED = """
import sglang.srt.managers.scheduler as s
s.validate_dflash_request = lambda req: None
"""
CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "a hook is missing": {"before": MISSING},
    "a hook has changed": {"before": CHANGED},
    "a hook is missing, on": {"before": MISSING, "environment": {"DFLASH2_SGLANG": "on"}},
    "off": {"environment": {"DFLASH2_SGLANG": "off"}},
    "another version": {"before": "import dflash2_sglang.hooks as h; h.TESTED = ('0.0.1',)"},
}


def look(cases: dict[str, dict[str, Any]], **environment: str) -> dict[str, Any]:
    """See `looking.py`."""
    done = subprocess.run(
        [PYTHON, "-m", "tests.sglang.looking", json.dumps(cases)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | CPU | environment,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def looked() -> dict[str, Any]:
    return look(CASES)


def test_the_installed_sglang_is_the_tested_one_and_every_hook_is_as_expected(engine: Sglang) -> None:
    report = engine.probe()
    assert report.problems == ()
    assert (report.name, report.route, report.tested, report.version in TESTED) == ("sglang", "plugin", True, True)
    assert set(report.hooks) == {hook.target for hook in HOOKS} | {CHOICES}
    assert set(report.hooks.values()) == {AS_EXPECTED}


def test_what_the_table_names_is_changed_and_nothing_else(looked: dict[str, Any]) -> None:
    found = looked["as it is"]
    assert found["hooked"] == sorted(hook.target for hook in HOOKS if hook.around is not None)
    assert found["registered"]
    assert "torch_native" in found["choices"]
    assert found["said"] == []


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("a hook is missing", "DFlashWorkerV2._accept_block not there"),
        ("a hook has changed", r"validate_dflash_request has the parameters \(req\), expected \(req, enable_overlap\)"),
    ],
)
def test_where_a_hook_differs_nothing_is_changed_and_one_line_names_version_hook_and_mend(
    case: str, sentence: str, looked: dict[str, Any]
) -> None:
    found = looked[case]
    assert found["hooked"] == []
    assert not found["registered"]
    assert "torch_native" not in found["choices"]
    assert found["ended"] is None
    [line] = found["said"]
    assert re.search(sentence, line)
    assert f"nothing was changed in SGLang {TESTED[0]}" in line
    assert "or set DFLASH2_SGLANG=off" in line


def test_with_on_sglang_does_not_start_where_a_hook_differs(looked: dict[str, Any]) -> None:
    found = looked["a hook is missing, on"]
    assert "DFlashWorkerV2._accept_block not there" in found["ended"]
    assert found["hooked"] == []


def test_with_off_nothing_is_looked_at(looked: dict[str, Any]) -> None:
    found = looked["off"]
    assert (found["hooked"], found["registered"], found["said"]) == ([], False, [])


def test_on_an_accelerator_it_stays_out_and_says_so() -> None:
    found = look({"there": {}}, SGLANG_USE_CPU_ENGINE="0")["there"]
    assert (found["hooked"], found["registered"]) == ([], False)
    [line] = found["said"]
    assert "stays out of its way" in line


def test_another_version_whose_hooks_fit_is_used_with_a_warning(looked: dict[str, Any]) -> None:
    found = looked["another version"]
    assert found["registered"]
    [line] = found["said"]
    assert "with which it was not tested" in line


def test_installing_dflash2_changes_no_package_of_sglangs(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    asked = ["install", "--dry-run", "--no-build-isolation", "--quiet", "--report", report, ROOT]
    done = subprocess.run([PYTHON, "-m", "pip", *map(str, asked)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    installed = [package["metadata"]["name"] for package in json.loads(report.read_text())["install"]]
    assert installed == ["dflash2"]
