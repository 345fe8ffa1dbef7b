"""`dflash2 export-gguf`, and `dflash2 inspect` of what it writes."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dflash2_core.assets import tiny_pair
from dflash2_core.cli import main
from gguf_export import OUTTYPES, export, read
from gguf_export.header import read_header
from tests.gguf.toys import rewritten


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def dflash2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command as the console script runs it, exit code and all."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["dflash2", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


def test_the_embedded_drafter_is_exported_and_inspected(dflash2: Run, tmp_path: Path) -> None:
    pair = tiny_pair()
    done = dflash2("export-gguf", pair.drafter, "--tokenizer-from", pair.target, "--outtype", "q8_0", "-o", tmp_path / "d.gguf")
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert "d.gguf: 36 tensors (Q8_0 2,400,256, F32 6,592)" in done.stdout
    shown = dflash2("inspect", tmp_path / "d.gguf")
    assert shown.returncode == 0, shown.stdout
    for fact in (
        "layout       gguf",
        "DFlash 2",
        "block 8 = 7 drafts, mask token 2",
        "outputs of target layers 0, 1, 2 of 4, width 288",
        "2, each window 96, not causal",
        "q8_0 100%, f32 0%",
        "no problem found",
    ):
        assert fact in shown.stdout, fact


def test_the_file_is_named_after_the_drafter_where_no_name_is_given(
    dflash2: Run, drafter: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = dflash2("export-gguf", drafter, "--tokenizer-from", target, "--json")
    told = json.loads(done.stdout)
    assert (told["path"], told["num_tensors"], told["target"]) == ("drafter-bf16.gguf", 36, "qwen3")
    assert told["num_bytes"] == (tmp_path / "drafter-bf16.gguf").stat().st_size
    assert read(tmp_path / "drafter-bf16.gguf")[0].version == 2


def test_what_cannot_be_exported_is_a_sentence_and_exit_code_2(
    dflash2: Run, drafter: Path, target: Path, tmp_path: Path
) -> None:
    weights = load_file(drafter / "model.safetensors")
    weights["norm.weight"][0] = float("nan")
    save_file(weights, drafter / "model.safetensors")
    done = dflash2("export-gguf", drafter, "--tokenizer-from", target, "-o", tmp_path / "d.gguf")
    assert done.returncode == 2
    assert "norm.weight holds 1 values that are no finite numbers" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*d.gguf*"))


@pytest.mark.parametrize("command", ["export-gguf", "inspect"])
def test_without_the_package_gguf_its_name_and_how_to_get_it_are_told(
    dflash2: Run, command: str, drafter: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("gguf", "gguf_export")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gguf", None)
    arguments = [drafter, "--tokenizer-from", target, "-o", tmp_path / "d.gguf"] if command == "export-gguf" else [target]
    done = dflash2(command, *arguments)
    assert done.returncode == 2
    assert done.stderr.strip() == "dflash2: this command needs gguf: pip install 'dflash2[gguf]'"


def test_the_command_line_starts_without_the_exporter() -> None:
    program = "import sys, dflash2_core.cli; print(sorted({'gguf', 'gguf_export'} & {n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_type_is_named_in_the_help(dflash2: Run) -> None:
    shown = dflash2("export-gguf", "--help").stdout
    for outtype in OUTTYPES:
        assert outtype in shown


def test_inspect_tells_where_a_gguf_comes_from(dflash2: Run, drafter: Path, target: Path, tmp_path: Path) -> None:
    (drafter / "README.md").write_text("---\nlicense: mit\n---\n")
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f16")
    told = json.loads(dflash2("inspect", "--json", tmp_path / "d.gguf").stdout)
    assert told["licence"] == "mit"
    assert told["metadata"]["general.name"] == "DFlash 2 drafter for toy-org/toy-target"
    assert told["metadata"]["general.source.files"] == "config.json, model.safetensors"
    assert told["metadata"]["tokenizer.ggml.pre"] == "default"


def test_a_gguf_is_known_by_its_content_not_by_its_name(dflash2: Run, drafter: Path, target: Path, tmp_path: Path) -> None:
    export(drafter, tmp_path / "blob", tokenizer_from=target, outtype="f16")
    assert json.loads(dflash2("inspect", "--json", tmp_path / "blob").stdout)["layout"] == "gguf"


def test_inspect_finds_what_is_wrong_with_a_gguf(dflash2: Run, drafter: Path, target: Path, tmp_path: Path) -> None:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    broken = {
        "key": rewritten(tmp_path / "d.gguf", tmp_path / "key.gguf", without=["dflash.block_size"]),
        "tensor": rewritten(tmp_path / "d.gguf", tmp_path / "tensor.gguf", without=["blk.1.attn_q.weight"]),
        "nan": tmp_path / "nan.gguf",
    }
    place, data = read_header(tmp_path / "d.gguf").tensors["fc.weight"], bytearray((tmp_path / "d.gguf").read_bytes())
    data[place.begin : place.begin + 4] = b"\xff\xff\xff\xff"
    broken["nan"].write_bytes(data)
    sentences = {
        "key": "dflash.block_size is missing: DFlash 2 needs it",
        "tensor": "1 of 36 tensors missing: blk.1.attn_q.weight",
        "nan": "fc.weight holds 1 values that are no finite numbers",
    }
    for name, path in broken.items():
        told = dflash2("inspect", "--json", path)
        assert told.returncode == 1, name
        assert json.loads(told.stdout)["findings"] == [sentences[name]]


@pytest.mark.parametrize("kind", ["a target", "cut off", "empty"])
def test_inspect_of_what_is_no_drafters_gguf_is_a_sentence(dflash2: Run, kind: str, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes({"a target": target.read_bytes(), "cut off": target.read_bytes()[:500], "empty": b""}[kind])
    done = dflash2("inspect", path)
    assert done.returncode == 2
    assert done.stderr.startswith("dflash2: ")
    assert "Traceback" not in done.stderr
