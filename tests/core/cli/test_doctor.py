"""`dflash2 doctor` as its user meets it: its screen, its JSON, its exit code. Engines are fakes behind the protocol."""

import json
import shutil
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import dflash2_core.cli.doctor  # noqa: F401, the module: the package has the command under its name
from dflash2_core.assets import tiny_pair
from dflash2_core.diagnosis.own_engine import FLOOR, TESTED
from dflash2_core.engines import EngineReport
from tests.core.cli.test_generate import dflash2
from tests.core.diagnosis.parts import QUIET, FakeEngine, report

HOOKS = {
    "vllm.config.vllm:VllmConfig.gate": "as expected",
    "vllm.config.vllm:VllmConfig.other": "as expected",
    "vllm.utils:expand": "takes (a) and not (b)",
}
PAIR = ("--target", tiny_pair().target, "--drafter", tiny_pair().drafter)


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> dict[str, EngineReport]:
    """The machine's, by name; a test may break them."""
    reports = {name: report(name) for name in ("llama-cpp", "sglang", "vllm")}
    module, real = sys.modules["dflash2_core.cli.doctor"], sys.modules["dflash2_core.engines"].find_engine
    monkeypatch.setattr(module, "engine_names", lambda: sorted(reports))
    monkeypatch.setattr(
        module,
        "find_engine",
        lambda name, program: FakeEngine(reports[name]) if name in reports and program is None else real(name, program),
    )
    for variable in ("DFLASH2_VLLM", "DFLASH2_SGLANG", "VLLM_PLUGINS", "SGLANG_PLUGINS", "SGLANG_SIMULATE_ACC_LEN"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in QUIET.items():
        monkeypatch.setenv(variable, value)
    return reports


def test_the_embedded_pair_is_sound_and_one_screen_says_all_of_it() -> None:
    done = dflash2("doctor", *PAIR)
    assert done.returncode == 0, done.stdout
    for words in (
        "8 rows, 7 drafts; mask token 2",
        "outputs of layers 0, 1, 2 of 4",
        "num_speculative_tokens 7",
        "--speculative-num-draft-tokens 8",
        "--spec-draft-n-max 7",
        "3, of 7",
        "keys and values 104 KiB in bf16",
        "0 errors, 0 warnings,",
    ):
        assert words in done.stdout
    assert len(done.stdout.splitlines()) < 60


def test_piped_it_is_plain_and_no_wider_than_a_hundred_columns() -> None:
    done = dflash2("doctor", *PAIR)
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 100
    assert "\x1b" not in done.stdout
    assert "[bold]" not in done.stdout


def test_without_a_pair_it_looks_at_the_engines_and_says_how_to_give_one() -> None:
    done = dflash2("doctor")
    assert done.returncode == 0, done.stdout
    assert "dflash2 doctor --target TARGET --drafter DRAFTER" in done.stdout
    assert done.stderr.splitlines()[-2:] == ["asking sglang ...", "asking vllm ..."], "nobody waits in silence"
    assert dflash2("doctor", "--json").stderr == ""
    for words in ("llama-cpp", "sglang", "vllm", "tested", "dflash2's plugin", "itself"):
        assert words in done.stdout


def test_every_hook_is_shown_with_its_state(engines: dict[str, EngineReport]) -> None:
    engines["vllm"] = report("vllm", hooks=HOOKS, route="none", problems=("vLLM's vllm.utils:expand takes (a) and not (b)",))
    done = dflash2("doctor", "--engine", "vllm")
    assert done.returncode == 1
    assert "vllm, 2 of 3 hooks, as expected: VllmConfig.gate, .other" in done.stdout
    assert "vllm, 1 of 3 hooks, takes (a) and not (b): expand" in done.stdout
    assert "nobody" in done.stdout
    told = json.loads(dflash2("doctor", "--engine", "vllm", "--json").stdout)
    assert told["engines"][0]["hooks"] == HOOKS


def test_json_holds_what_the_screen_shows() -> None:
    done = dflash2("doctor", *PAIR, "--json", "--parallel", "4", "--context", "512")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told["sound"] is True
    assert [engine["name"] for engine in told["engines"]] == ["transformers", "llama-cpp", "sglang", "vllm"]
    assert told["memory"] | {"weights": 4813696, "rows": 4, "context": 512, "positions": 95} == told["memory"]
    assert told["engines"][3]["command"] == f"serve {tiny_pair().target} {tiny_pair().drafter}"
    assert (told["target"]["vocab_size"], told["target"]["context_length"]) == (1024, 2048)
    assert (told["drafter"]["layout"], told["drafter"]["parameters_by_dtype"]) == ("zlab", {"bf16": 2406848})
    assert told["drafter"]["config"]["target_layer_ids"] == [0, 1, 2]
    assert told["block"]["sglang"]["said"] == "--speculative-num-draft-tokens 8"
    assert {"level", "subject", "reason", "mend"} == set(told["findings"][0])


def test_a_pair_that_does_not_fit_ends_with_exit_code_1_and_its_reason(tmp_path: Path) -> None:
    shutil.copytree(tiny_pair().target, tmp_path / "target")
    config = tmp_path / "target" / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 1024', '"vocab_size": 1000'))
    done = dflash2("doctor", "--target", tmp_path / "target", "--drafter", tiny_pair().drafter)
    assert done.returncode == 1
    assert "its vocabulary has 1024 ids, the target's 1000" in done.stdout
    assert "1 error," in done.stdout


def test_a_broken_engine_ends_with_exit_code_1(engines: dict[str, EngineReport]) -> None:
    engines["sglang"] = report("sglang", route="none", problems=("SGLang's hook is not there",))
    done = dflash2("doctor")
    assert done.returncode == 1
    assert "SGLang's hook is not there" in done.stdout


def test_an_engine_that_is_not_installed_is_a_note_and_an_error_where_it_was_named(engines: dict[str, EngineReport]) -> None:
    engines["vllm"] = report(
        "vllm",
        program=None,
        version=None,
        tested=False,
        route="none",
        problems=("vLLM's Python was not found: set a variable",),
    )
    done = dflash2("doctor")
    assert (done.returncode, "not found" in done.stdout, "set a variable" in done.stdout) == (0, True, True)
    assert dflash2("doctor", "--engine", "vllm").returncode == 1


def test_the_environment_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "4")
    done = dflash2("doctor")
    assert done.returncode == 1
    assert "SGLANG_SIMULATE_ACC_LEN is 4" in done.stdout


def test_what_stands_behind_the_dashes_is_the_engines() -> None:
    done = dflash2("doctor", *PAIR, "--engine", "sglang", "--", "--speculative-accept-threshold-single", "0.5")
    assert done.returncode == 1
    assert "--speculative-accept-threshold-single is 0.5" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engine", "mlc"), "there is no adapter for the engine 'mlc'"),
        (("--target", "/nowhere/target"), "does not exist: expected the target's folder"),
        (("--engine", "vllm", "--", "--speculative-config", "{"), "expected a JSON object"),
        (("--", "--port", "1"), "say which with --engine"),
    ],
)
def test_what_cannot_be_read_could_not_be_looked_at(arguments: tuple[str, ...], words: str) -> None:
    done = dflash2("doctor", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_an_engine_is_looked_for_where_it_is_said_to_be(tmp_path: Path) -> None:
    done = dflash2("doctor", "--engine", "llama-cpp", "--program", tmp_path / "nowhere", "--json")
    assert done.returncode == 1, done.stderr
    [finding] = [each for each in json.loads(done.stdout)["findings"] if each["level"] == "error"]
    assert f"{tmp_path / 'nowhere'}, which the setting names, is no program" in finding["reason"]


@pytest.mark.parametrize("named", [(), ("--engine", "vllm", "--engine", "sglang")])
def test_a_program_is_one_engines(named: tuple[str, ...]) -> None:
    done = dflash2("doctor", *named, "--program", sys.executable)
    assert done.returncode == 2
    assert "--program says where one engine is: name that one with --engine" in done.stderr


def test_without_an_adapter_there_is_the_cores_own_engine(engines: dict[str, EngineReport]) -> None:
    engines.clear()
    told = json.loads(dflash2("doctor", *PAIR, "--json").stdout)
    [own] = told["engines"]
    assert (own["name"], own["route"], own["tested"]) == ("transformers", "native", True)
    assert own["command"].split()[:3] == ["dflash2", "generate", "--target"]
    assert [finding["level"] for finding in told["findings"]].count("error") == 0


def test_without_transformers_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(sys.modules["dflash2_core.diagnosis.own_engine"], "version", nothing)
    assert dflash2("doctor").returncode == 0
    done = dflash2("doctor", "--engine", "transformers")
    assert done.returncode == 1
    assert "Transformers is not installed beside dflash2" in done.stdout
    assert "pip install 'dflash2[transformers]'" in done.stdout


@pytest.mark.parametrize(("found", "takes"), [("4.57.1", False), ("5.3.9", False), ("5.4.0", True), ("6.0.0.dev0", True)])
def test_a_transformers_that_is_too_old_is_an_error(found: str, takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["dflash2_core.diagnosis.own_engine"], "version", lambda _: found)
    done = dflash2("doctor", "--engine", "transformers")
    assert done.returncode == (not takes)
    assert (f"Transformers {found} is too old" in done.stdout) is not takes
    assert "ci/transformers.sh" not in done.stdout


def test_the_cores_own_engine_is_the_one_that_is_pinned_and_has_no_other_program() -> None:
    done = dflash2("doctor", "--engine", "transformers", "--program", sys.executable)
    assert done.returncode == 2
    assert "the engine transformers runs where dflash2 does: leave --program out" in done.stderr
    pins = (Path(__file__).parents[3] / "ci/core.txt").read_text().splitlines()
    assert f"transformers=={TESTED}" in pins
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"transformers>={'.'.join(map(str, FLOOR))}" in extras["transformers"]
