"""The plugin in SGLang's own Python: the table of hooks holds; where it does not, nothing is changed and one line says why."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from dflash2_sglang import Sglang
from dflash2_sglang.hooks import AS_EXPECTED, CHOICES, HOOKS, TESTED
from tests.sglang.servers import ENVIRONMENT, PYTHON, ROOT

CPU = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
LOOK = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, format="LOG %(message)s")
{before}
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.arg_groups.choices import DRAFT_ATTENTION_BACKEND_CHOICES
from sglang.srt.speculative.spec_registry import get_spec
print(json.dumps({{
    "hooked": sorted(HookRegistry._patched),
    "choices": DRAFT_ATTENTION_BACKEND_CHOICES,
    "registered": get_spec("DFLASH2") is not None,
}}))
"""


def look(before: str = "", **environment: str) -> tuple[dict[str, object], list[str]]:
    """What stands in SGLang after its plugins were loaded, and what dflash2 said; {} where the process ended before."""
    done = subprocess.run(
        [PYTHON, "-c", LOOK.format(before=before)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | ENVIRONMENT | CPU | environment,
    )
    said = [line.removeprefix("LOG ") for line in done.stderr.splitlines() if line.startswith("LOG dflash2")]
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    return found, said if done.returncode == 0 else [done.stderr.strip().splitlines()[-1]]


def test_the_installed_sglang_is_the_tested_one_and_every_hook_is_as_expected(engine: Sglang) -> None:
    report = engine.probe()
    assert report.problems == ()
    assert (report.name, report.route, report.tested, report.version in TESTED) == ("sglang", "plugin", True, True)
    assert set(report.hooks) == {hook.target for hook in HOOKS} | {CHOICES}
    assert set(report.hooks.values()) == {AS_EXPECTED}


def test_what_the_table_names_is_changed_and_nothing_else() -> None:
    found, said = look()
    assert found["hooked"] == sorted(hook.target for hook in HOOKS if hook.around is not None)
    assert found["registered"]
    assert "torch_native" in found["choices"]
    assert said == []


MISSING = "import sglang.srt.speculative.dflash_worker_v2 as w; del w.DFlashWorkerV2._accept_block"
CHANGED = """
import sglang.srt.managers.scheduler as s
s.validate_dflash_request = lambda req: None
"""
STANDIN = "from dflash2_sglang.cpu.standin import provide_sgl_kernel; provide_sgl_kernel()\n"


@pytest.mark.parametrize(
    ("before", "sentence"),
    [
        (MISSING, "DFlashWorkerV2._accept_block not there"),
        (CHANGED, r"validate_dflash_request has the parameters \(req\), expected \(req, enable_overlap\)"),
    ],
)
def test_where_a_hook_differs_nothing_is_changed_and_one_line_names_version_hook_and_mend(before: str, sentence: str) -> None:
    found, said = look(STANDIN + before)
    assert found["hooked"] == []
    assert not found["registered"]
    assert "torch_native" not in found["choices"]
    [line] = said
    assert re.search(sentence, line)
    assert f"nothing was changed in SGLang {TESTED[0]}" in line
    assert "or set DFLASH2_SGLANG=off" in line


def test_with_on_sglang_does_not_start_where_a_hook_differs() -> None:
    found, [line] = look(STANDIN + MISSING, DFLASH2_SGLANG="on")
    assert found == {}
    assert "DFlashWorkerV2._accept_block not there" in line


def test_with_off_nothing_is_looked_at() -> None:
    found, said = look(STANDIN, DFLASH2_SGLANG="off")
    assert (found["hooked"], found["registered"], said) == ([], False, [])


def test_on_an_accelerator_it_stays_out_and_says_so() -> None:
    found, said = look(SGLANG_USE_CPU_ENGINE="0")
    assert (found["hooked"], found["registered"]) == ([], False)
    [line] = said
    assert "stays out of its way" in line


def test_another_version_whose_hooks_fit_is_used_with_a_warning() -> None:
    found, [line] = look("import dflash2_sglang.hooks as h; h.TESTED = ('0.0.1',)")
    assert found["registered"]
    assert "with which it was not tested" in line


def test_installing_dflash2_changes_no_package_of_sglangs(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    asked = ["install", "--dry-run", "--no-build-isolation", "--quiet", "--report", report, ROOT]
    done = subprocess.run([PYTHON, "-m", "pip", *map(str, asked)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    installed = [package["metadata"]["name"] for package in json.loads(report.read_text())["install"]]
    assert installed == ["dflash2"]
