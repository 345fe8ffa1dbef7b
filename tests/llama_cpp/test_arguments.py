"""The command line: everything that matters is said in it, and what would spoil the drafts is refused."""

import shutil
from pathlib import Path

import pytest

from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions
from dflash2_core.errors import CompatibilityError, EngineError
from dflash2_llama_cpp import LlamaCpp


def argv(engine: LlamaCpp, files: Path, *, drafter: str | None = "f32.gguf", **options: object) -> str:
    path = None if drafter is None else files / drafter
    return str(engine.command(files / "target.gguf", path, EngineOptions(**options)))


def test_the_number_of_drafts_is_that_of_the_block(engine: LlamaCpp, files: Path) -> None:
    said = argv(engine, files)
    assert "--spec-type draft-dflash --spec-draft-n-max 7" in said
    assert f"-m {files / 'target.gguf'}" in said
    assert f"-md {files / 'f32.gguf'}" in said


def test_fewer_drafts_may_be_asked_for_and_no_more_than_the_block_has(engine: LlamaCpp, files: Path) -> None:
    assert "--spec-draft-n-max 3" in argv(engine, files, num_drafts=3)
    with pytest.raises(CompatibilityError, match="8 drafts were asked for, and a drafter of block size 8 makes 7"):
        argv(engine, files, num_drafts=8)


def test_the_target_alone_has_nothing_of_drafts_in_its_command(engine: LlamaCpp, files: Path) -> None:
    assert "spec" not in argv(engine, files, drafter=None)


def test_the_context_is_that_of_every_request(engine: LlamaCpp, files: Path) -> None:
    assert "-np 4 -c 2048" in argv(engine, files, parallel=4, context=512)


@pytest.mark.parametrize("option", ["-ub", "--ubatch-size", "-b", "--batch-size"])
def test_blocks_that_do_not_fit_into_a_pass_are_a_sentence(option: str, engine: LlamaCpp, files: Path) -> None:
    with pytest.raises(CompatibilityError, match="a pass takes 31 rows .* blocks of 4 requests have 32, 8 each"):
        argv(engine, files, parallel=4, extra=(option, "31"))
    assert f"{option} 32" in argv(engine, files, parallel=4, extra=(option, "32"))


def test_passes_grow_with_the_number_of_requests(engine: LlamaCpp, files: Path) -> None:
    assert "-b 2048 -ub 800" in argv(engine, files, parallel=100)
    assert "-b 2400 -ub 2400" in argv(engine, files, parallel=300)
    assert "-b 2048 -ub 512" in argv(engine, files, parallel=1)


@pytest.mark.parametrize(
    "extra", [("--spec-type", "none"), ("--spec-draft-n-max", "3"), ("-np", "9"), ("-c=4",), ("--port", "1"), ("-m", "other")]
)
def test_what_the_adapter_says_is_not_said_twice(extra: tuple[str, ...], engine: LlamaCpp, files: Path) -> None:
    with pytest.raises(EngineError, match=f"^{extra[0].partition('=')[0]} is not handed on to llama-server: (use|it) "):
        argv(engine, files, extra=extra)


@pytest.mark.parametrize("option", ["--spec-synth-len", "--spec-synth-rates", "--spec-draft-sampling"])
def test_what_would_change_the_text_is_refused(option: str, engine: LlamaCpp, files: Path) -> None:
    with pytest.raises(EngineError, match=f"{option} is not handed on"):
        argv(engine, files, extra=(option, "3"))


def test_variables_that_would_change_the_drafts_unseen_are_refused(
    engine: LlamaCpp, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_P_MIN", "0.9")
    with pytest.raises(EngineError, match="LLAMA_ARG_SPEC_DRAFT_P_MIN would change what llama-server drafts"):
        argv(engine, files)


def test_other_arguments_are_handed_on_as_they_are(engine: LlamaCpp, files: Path) -> None:
    assert argv(engine, files, extra=("--alias", "a name")).endswith("--alias 'a name'")


def test_options_out_of_range_are_sentences() -> None:
    numbers = (
        {"port": -1},
        {"port": 70000},
        {"parallel": 0},
        {"context": 1},
        {"num_drafts": 0},
        {"memory": 0.0},
        {"memory": 1.5},
    )
    for wrong in (*numbers, {"dtype": "float"}):
        with pytest.raises(EngineError, match="expected"):
            EngineOptions(**wrong)


def test_a_dtype_is_that_of_keys_and_values_and_of_a_drafter_that_is_written(
    engine: LlamaCpp, files: Path, tmp_path: Path
) -> None:
    exact = argv(engine, files, dtype="float32")
    assert "-fa off -ctk f32 -ctv f32 -ctkd f32 -ctvd f32" in exact
    for option in ("-fa", "-ctk", "--cache-type-v", "--spec-draft-type-k", "--dtype"):
        with pytest.raises(EngineError, match=f"^{option} is not handed on to llama-server: it "):
            argv(engine, files, dtype="float32", extra=(option, "q8_0"))
    assert argv(engine, files, extra=("-ctk", "q8_0")).endswith("-ctk q8_0")
    assert "-ctk bf16 -ctv bf16 -ctkd" in argv(engine, files, dtype="bfloat16")
    alone = argv(engine, files, drafter=None, dtype="float32")
    assert "-ctk f32 -ctv f32" in alone
    assert "-ctkd" not in alone
    assert not any(word in argv(engine, files, memory=0.5) for word in ("-fa", "-ctk", "0.5"))
    for said, options in (("f32", {}), ("q8_0", {"drafter_dtype": "q8_0"})):
        command = engine.command(
            files / "target.gguf", tiny_pair().drafter, EngineOptions(cache=tmp_path, dtype="float32", **options)
        )
        assert f"-{said}-" in command.argv[command.argv.index("-md") + 1]


def test_a_folder_is_exported_once_and_again_when_anything_of_it_changes(engine: LlamaCpp, files: Path, tmp_path: Path) -> None:
    drafter, cache = tmp_path / "drafter", tmp_path / "cache"
    shutil.copytree(tiny_pair().drafter, drafter)
    options = EngineOptions(cache=cache, drafter_dtype="q8_0")

    def made() -> set[Path]:
        said = engine.command(files / "target.gguf", drafter, options).argv
        assert Path(said[said.index("-md") + 1]) in set(cache.iterdir())
        return set(cache.iterdir())

    [first] = made()
    written = first.stat().st_mtime_ns
    assert made() == {first}
    assert first.stat().st_mtime_ns == written
    assert first.read_bytes() == (files / "q8_0.gguf").read_bytes()
    config = drafter / "config.json"
    config.write_text(config.read_text().replace('"sliding_window": 96', '"sliding_window": 64'))
    assert len(made()) == 2


def test_a_gguf_is_not_stored_otherwise_than_it_is(engine: LlamaCpp, files: Path) -> None:
    with pytest.raises(EngineError, match="is a GGUF already"):
        argv(engine, files, drafter_dtype="q4_0")
