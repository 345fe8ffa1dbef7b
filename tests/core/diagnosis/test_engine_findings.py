"""What is said of an engine itself, and of what its adapter says of the pair."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from dflash2_core.diagnosis.engines import engine_findings, pair_findings
from dflash2_core.diagnosis.facts import EngineSide
from dflash2_core.diagnosis.verification import verification_findings
from dflash2_core.engines import engine_names
from tests.core.diagnosis.parts import QUIET, drafter, engine, report, target, told

NOWHERE = report("vllm", program=None, version=None, tested=False, route="none", problems=("not found: set its variable",))


@pytest.mark.parametrize("name", ["vllm", "sglang", "llama-cpp"])
def test_of_a_sound_and_tested_engine_nothing_is_said(name: str) -> None:
    assert told(engine_findings(engine(name))) == {}


def test_an_engine_that_is_not_installed_is_a_note_with_its_mend() -> None:
    assert told(engine_findings(EngineSide(report=NOWHERE))) == {"note": "vllm: not found -> set its variable\n"}


def test_an_engine_that_was_asked_for_and_is_not_installed_is_an_error() -> None:
    assert "not found" in told(engine_findings(EngineSide(report=NOWHERE, asked=True)))["error"]


def test_an_engine_that_is_not_where_a_variable_says_is_broken_and_not_merely_absent() -> None:
    side = EngineSide(report=NOWHERE, stated="DFLASH2_VLLM_PYTHON")
    assert not side.absent
    found = told(engine_findings(side))["error"]
    assert "not found" in found
    assert "set DFLASH2_VLLM_PYTHON to where it is, or unset it" in found


def test_an_adapters_notes_are_told_but_for_what_another_subject_says_where_it_holds() -> None:
    notes = ("it refuses min_p", "set OMP_NUM_THREADS", "it drafts the most probable path at every temperature")
    found = told(engine_findings(engine("vllm", notes=notes)))
    assert "it refuses min_p" in found["note"]
    assert found["note"].count("\n") == 1


def test_the_words_that_notes_are_known_by_are_those_of_the_adapters() -> None:
    from dflash2_core.diagnosis.engines import SAID_ELSEWHERE

    notes = "".join(note for name in engine_names() for note in import_module(f"dflash2_{name.replace('-', '_')}.engine").NOTES)
    assert [words for words in SAID_ELSEWHERE if words not in notes] == []


def test_sglangs_own_verification_passes_over_what_the_plugin_honours() -> None:
    assert "passes over min_p" in told(verification_findings(engine("sglang", route="native")))["warning"]
    for name in ("sglang", "vllm", "llama-cpp"):
        assert told(verification_findings(engine(name))) == {}


def test_every_problem_of_a_broken_engine_is_an_error() -> None:
    found = told(engine_findings(engine("sglang", route="none", problems=("a hook differs", "another differs"))))
    assert found["error"].count("\n") == 2
    assert "bash ci/sglang.sh" in found["error"]


def test_a_problem_that_the_environment_makes_is_said_once() -> None:
    problem = "DFLASH2_VLLM is off, with which the plugin does nothing in vLLM: unset it"
    side = engine("vllm", variables={**QUIET, "DFLASH2_VLLM": "off"}, route="none", problems=(problem,))
    assert told(engine_findings(side)) == {}
    assert problem in told(engine_findings(replace(side, variables=QUIET)))["error"]


def test_a_version_that_was_not_tested_is_a_warning_that_names_it_and_verify() -> None:
    found = told(engine_findings(engine("llama-cpp", tested=False, version="2.0")))
    assert "version 2.0 is not one that dflash2 was tested with" in found["warning"]
    assert "dflash2 verify TARGET DRAFTER --engine llama-cpp" in found["warning"]


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_of_folders_these_engines_say_nothing(name: str) -> None:
    assert told(pair_findings(engine(name), target(), drafter())) == {}


def test_llama_cpp_is_told_that_a_folder_is_no_gguf_and_how_to_convert_it() -> None:
    folder = replace(target(), path=Path("some-target"))  # the embedded one's GGUF is made for it
    found = told(pair_findings(engine("llama-cpp"), folder, drafter()))
    assert "it runs a GGUF of the target" in found["error"]
    assert "convert_hf_to_gguf.py" in found["error"]
    unasked = replace(engine("llama-cpp"), asked=False)
    assert set(told(pair_findings(unasked, folder, drafter()))) == {"note"}


def test_a_gguf_is_none_of_vllms() -> None:
    gguf = replace(target(), layout="gguf", path=Path("some.gguf"))
    assert "some.gguf is a GGUF" in told(pair_findings(engine("vllm"), gguf, drafter()))["error"]
    assert told(pair_findings(engine("llama-cpp"), gguf, drafter())) == {}


def test_each_reason_of_an_adapters_refusal_stands_by_itself() -> None:
    side = replace(engine("vllm"), refusal="it does not work in vLLM:\n- the windows differ\n- the causality differs")
    found = told(pair_findings(side, target(), drafter()))["error"].splitlines()
    assert [("the windows differ" in found[0]), ("the causality differs" in found[1]), len(found)] == [True, True, 2]
