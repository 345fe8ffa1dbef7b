"""The whole look, with engines that are fakes behind the protocol."""

import shutil
from pathlib import Path

import pytest

from dflash2_core.assets import tiny_pair
from dflash2_core.diagnosis import Asked, Diagnosis, diagnose
from dflash2_core.diagnosis.examining import variables_of
from dflash2_core.engines import Engine
from dflash2_core.errors import CompatibilityError, EngineError
from dflash2_llama_cpp import program
from dflash2_sglang import interpreter as of_sglang
from dflash2_vllm import interpreter as of_vllm
from tests.core.diagnosis.parts import QUIET, FakeEngine, report, told

PAIR = Asked(target=tiny_pair().target, drafter=tiny_pair().drafter)


def sound_engines() -> list[FakeEngine]:
    return [FakeEngine(report(name)) for name in ("llama-cpp", "sglang", "vllm")]


def seen(asked: Asked, *engines: Engine, environment: dict[str, str] | None = None) -> Diagnosis:
    return diagnose(asked, engines, QUIET if environment is None else environment)


def test_the_embedded_pair_on_sound_engines_has_notes_alone() -> None:
    found = seen(PAIR, *sound_engines())
    assert found.sound
    assert {finding.level for finding in found.findings} == {"note"}
    assert {finding.subject for finding in found.findings} == {"llama-cpp"}
    assert {side.name: side.command is not None for side in found.engines} == {"llama-cpp": False, "sglang": True, "vllm": True}
    assert found.memory is not None
    assert [words.engine for words in found.blocks] == ["transformers", "vllm", "sglang", "llama-cpp", "ollama"]


def test_adapters_are_asked_with_the_rows_and_positions_that_were_given() -> None:
    vllm = FakeEngine(report("vllm"))
    seen(Asked(target=PAIR.target, drafter=PAIR.drafter, rows=4, context=512), vllm)
    ((target, drafter, options),) = vllm.asked_for
    assert (target, drafter) == (PAIR.target, PAIR.drafter)
    assert (options.parallel, options.context, options.extra) == (4, 512, ())


def test_llama_cpp_takes_the_folder_of_the_embedded_target_alone(tmp_path: Path) -> None:
    """Its adapter makes that one's GGUF; nothing is written for a look."""
    llama = FakeEngine(report("llama-cpp"))
    asked = Asked(target=PAIR.target, drafter=PAIR.drafter, engines=("llama-cpp",))
    assert seen(asked, llama).sound
    shutil.copytree(PAIR.target, tmp_path / "target")
    elsewhere = Asked(target=tmp_path / "target", drafter=PAIR.drafter, engines=("llama-cpp",))
    assert "it runs a GGUF of the target, and target is a folder" in told(seen(elsewhere, llama).findings)["error"]
    assert llama.asked_for == []


def test_what_an_adapter_refuses_is_an_error() -> None:
    refusing = FakeEngine(report("vllm"), refusal=CompatibilityError("its layers have different windows"))
    found = seen(PAIR, refusing)
    assert not found.sound
    assert "it would not draft with this pair: its layers have different windows" in told(found.findings)["error"]


def test_a_pair_that_does_not_fit_is_told_once_and_no_engine_is_asked_for_it() -> None:
    vllm = FakeEngine(report("vllm"))
    found = seen(Asked(target=PAIR.drafter, drafter=PAIR.drafter), vllm)
    assert "this is a drafter's folder" in told(found.findings)["error"]
    assert vllm.asked_for == []


def test_a_broken_engine_is_asked_for_no_command() -> None:
    broken = FakeEngine(report("vllm", route="none", problems=("vLLM's X is not to be had",)))
    found = seen(PAIR, broken)
    assert "vLLM's X is not to be had" in told(found.findings)["error"]
    assert broken.asked_for == []


def test_an_engine_that_is_nowhere_is_a_note_unless_it_was_asked_for_or_said_to_be_somewhere() -> None:
    absent = report("vllm", program=None, version=None, tested=False, route="none", problems=("not found: build it",))
    assert told(seen(Asked(), FakeEngine(absent)).findings) == {"note": "vllm: not found -> build it\n"}
    assert "error" in told(seen(Asked(engines=("vllm",)), FakeEngine(absent)).findings)
    stated = {**QUIET, "DFLASH2_VLLM_PYTHON": "/nowhere"}
    assert "error" in told(seen(Asked(), FakeEngine(absent), environment=stated).findings)


def test_of_an_engine_that_is_nowhere_nothing_else_is_said() -> None:
    absent = report("llama-cpp", program=None, version=None, tested=False, route="none", problems=("not found: build it",))
    found = seen(PAIR, FakeEngine(absent), environment={"LLAMA_ARG_SPEC_SYNTH_LEN": "3"})
    assert {finding.reason for finding in found.findings if finding.subject == "llama-cpp"} == {"not found"}


def test_arguments_are_looked_at_for_the_engine_that_was_named() -> None:
    asked = Asked(
        target=PAIR.target, drafter=PAIR.drafter, engines=("sglang",), arguments=("--speculative-num-draft-tokens", "7")
    )
    found = told(seen(asked, FakeEngine(report("sglang"))).findings)
    assert "6 drafts" in found["warning"]


@pytest.mark.parametrize("engines", [(), ("vllm", "sglang")])
def test_arguments_of_no_one_engine_could_not_be_read(engines: tuple[str, ...]) -> None:
    with pytest.raises(EngineError, match="say which with --engine"):
        seen(Asked(engines=engines, arguments=("--x",)), *sound_engines())


def test_without_a_pair_only_the_engines_are_looked_at() -> None:
    found = seen(Asked(), *sound_engines())
    assert (found.target, found.drafter, found.memory, found.blocks) == (None, None, None, ())
    assert found.findings == ()


def test_a_drafter_alone_is_looked_at_as_far_as_it_goes(tmp_path: Path) -> None:
    shutil.copytree(tiny_pair().drafter, tmp_path / "drafter")
    (tmp_path / "drafter" / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    found = seen(Asked(drafter=tmp_path / "drafter"))
    assert "not for commercial use" in told(found.findings)["warning"]
    assert found.memory is not None
    assert found.memory.dtype == "bf16"


def test_a_target_alone_is_looked_at_as_far_as_it_goes() -> None:
    found = seen(Asked(target=tiny_pair().target))
    assert (found.findings, found.memory) == ((), None)


def test_the_worst_comes_first() -> None:
    found = seen(PAIR, *sound_engines(), environment={"DFLASH2_VLLM": "off"})
    levels = [finding.level for finding in found.findings]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    assert len(set(levels)) == 3


def test_of_what_is_no_drafter_and_no_target_that_alone_is_said(tmp_path: Path) -> None:
    found = seen(Asked(target=tmp_path, drafter=tmp_path), *sound_engines())
    assert {finding.subject for finding in found.findings if finding.level == "error"} == {"target", "drafter"}
    assert not [finding for finding in found.findings if finding.subject == "licence"]
    assert not [finding for finding in found.findings if "is a folder" in finding.reason]


def test_the_variables_that_say_where_an_engine_is_are_those_of_its_adapter() -> None:
    assert of_vllm.VARIABLE in variables_of("vllm")
    assert of_sglang.VARIABLE in variables_of("sglang")
    assert program.VARIABLE in variables_of("llama-cpp")
