"""Which llama-server is taken, and what is said of one that will not do."""

from pathlib import Path

import pytest

from dflash2_core.engines import EngineOptions, engine_names, find_engine
from dflash2_core.errors import EngineError
from dflash2_llama_cpp import LlamaCpp
from dflash2_llama_cpp.program import TESTED_BUILD, VARIABLE


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Neither in the environment nor on PATH."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_the_program_that_ci_built_is_the_tested_one_and_drafts_by_itself(engine: LlamaCpp) -> None:
    report = engine.probe()
    assert report.problems == ()
    assert (report.name, report.route, report.tested) == ("llama-cpp", "native", True)
    assert str(TESTED_BUILD) in report.version
    assert report.to_dict()["program"] == str(engine.interpreter)


def test_the_report_says_what_happens_above_temperature_0(engine: LlamaCpp) -> None:
    assert "above temperature 0 fewer drafts are kept" in " ".join(engine.probe().notes)


def test_the_setting_goes_before_the_variable_before_path_before_the_checkout(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LlamaCpp().interpreter.parts[-3:] == ("llama-cpp", "bin", "llama-server")
    on_path = script(nowhere / "bin" / "llama-server", "true")
    assert LlamaCpp().interpreter == on_path
    by_variable = script(nowhere / "variable", "true")
    monkeypatch.setenv(VARIABLE, str(by_variable))
    assert LlamaCpp().interpreter == by_variable
    setting = script(nowhere / "setting", "true")
    assert LlamaCpp(setting).interpreter == setting


def test_a_program_that_is_not_there_is_a_sentence(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [said] = LlamaCpp(nowhere / "absent").probe().problems
    assert "absent, which the setting names, is no program" in said
    monkeypatch.setenv(VARIABLE, str(nowhere))
    [said] = LlamaCpp().probe().problems
    assert f"which {VARIABLE} names, is no program" in said


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ("echo hello", "says no version of llama.cpp; it said: hello"),
        ("exit 1", "it said: nothing"),
        ("echo 'version: 6000 (abcdef1)'", "llama.cpp 6000, which does not know DFlash 2"),
    ],
)
def test_a_program_that_will_not_do_is_a_sentence(says: str, problem: str, files: Path, tmp_path: Path) -> None:
    engine = LlamaCpp(script(tmp_path / "llama-server", says))
    report = engine.probe()
    assert report.route == "none"
    assert problem in report.problems[0]
    with pytest.raises(EngineError, match="llama.cpp"):
        engine.start(files / "target.gguf", files / "f32.gguf", EngineOptions())


def test_a_libllama_beside_the_program_is_looked_into(tmp_path: Path) -> None:
    engine = LlamaCpp(script(tmp_path / "bin" / "llama-server", "echo 'version: 0.5.1 (build 12000, commit abc)' >&2"))
    assert engine.probe().route == "none"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libllama.so.0").write_bytes(b"\0%s.selector_top_k\0")
    report = engine.probe()
    assert (report.route, report.tested, report.version) == ("native", False, "0.5.1 (build 12000, commit abc)")


def test_the_engine_is_found_by_its_name() -> None:
    assert "llama-cpp" in engine_names()
    assert isinstance(find_engine("llama-cpp"), LlamaCpp)
    with pytest.raises(EngineError, match=r"no adapter for the engine 'other'; installed: .*llama-cpp"):
        find_engine("other")


def test_a_server_that_ends_at_once_is_a_sentence_with_the_end_of_its_log(
    engine: LlamaCpp, files: Path, tmp_path: Path
) -> None:
    options = EngineOptions(extra=("--no-such-option",), log=tmp_path / "log")
    with pytest.raises(EngineError, match="ended with code 1 before it answered.*no-such-option"):
        engine.start(files / "target.gguf", files / "f32.gguf", options)
