"""The file: the same bytes for the same drafter, and there only when whole."""

import errno
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGUFReader

import gguf_export.exporting
from dflash2_core.errors import CheckpointError
from gguf_export import export
from gguf_export.header import read_header
from tests.gguf.toys import loaded, saved, toy_drafter, write_target


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("outtype", ["f32", "bf16", "q8_0"])
def test_the_same_drafter_gives_the_same_bytes_wherever_it_lies(
    outtype: str, drafter: Path, target: Path, tmp_path: Path
) -> None:
    elsewhere = shutil.copytree(drafter, tmp_path / "another" / "name")
    there = shutil.copy(target, tmp_path / "another" / "t.gguf")
    export(drafter, tmp_path / "one.gguf", tokenizer_from=target, outtype=outtype)
    program = (
        "import sys, gguf_export as g; g.export(sys.argv[1], sys.argv[2], tokenizer_from=sys.argv[3], outtype=sys.argv[4])"
    )
    command = [sys.executable, "-c", program, elsewhere, tmp_path / "two.gguf", there, outtype]
    subprocess.run([str(part) for part in command], check=True)
    assert digest(tmp_path / "one.gguf") == digest(tmp_path / "two.gguf")


def test_another_drafter_gives_other_bytes(drafter: Path, target: Path, tmp_path: Path) -> None:
    export(drafter, tmp_path / "one.gguf", tokenizer_from=target, outtype="q8_0")
    saved(toy_drafter(seed=1, layer_windows=(12, 12)), drafter)
    export(drafter, tmp_path / "two.gguf", tokenizer_from=target, outtype="q8_0")
    assert digest(tmp_path / "one.gguf") != digest(tmp_path / "two.gguf")


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_export_that_breaks_off_leaves_what_was_there(
    problem: BaseException, drafter: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export(drafter, out / "d.gguf", tokenizer_from=target, outtype="f32")
    before, whole, written = digest(out / "d.gguf"), gguf_export.exporting.converted, []

    def until_the_tenth(*arguments: object) -> object:
        written.append([file.name for file in out.iterdir()])
        if len(written) == 10:
            raise problem
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(gguf_export.exporting, "converted", until_the_tenth)
    with pytest.raises((CheckpointError, KeyboardInterrupt)) as raised:
        export(drafter, out / "d.gguf", tokenizer_from=target, outtype="bf16")
    assert len(written) == 10
    assert ".d.gguf.writing" in written[-1], "nothing was being written when it broke off"
    assert [file.name for file in out.iterdir()] == ["d.gguf"]
    assert digest(out / "d.gguf") == before
    if isinstance(raised.value, CheckpointError):
        assert "d.gguf cannot be written: No space left on device" in str(raised.value)


def test_a_drafters_gguf_is_replaced(drafter: Path, target: Path, tmp_path: Path) -> None:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="bf16")
    assert read_header(tmp_path / "d.gguf").value("general.file_type") == 32


def test_what_is_no_drafters_gguf_is_not_written_over(drafter: Path, target: Path, tmp_path: Path) -> None:
    before = digest(target)
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "nowhere")
    for path in (target, tmp_path / "notes", tmp_path, tmp_path / "link.gguf"):
        with pytest.raises(CheckpointError, match="is already there and is no drafter's GGUF: choose another name"):
            export(drafter, path, tokenizer_from=target, outtype="f32")
    assert digest(target) == before
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_place_in_no_folder_is_refused(drafter: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is no folder: make it first"):
        export(drafter, tmp_path / "nowhere" / "d.gguf", tokenizer_from=target, outtype="f32")


def test_the_package_gguf_reads_what_is_written(drafter: Path, target: Path, tmp_path: Path) -> None:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    reader = GGUFReader(tmp_path / "d.gguf")
    header = read_header(tmp_path / "d.gguf")
    assert reader.fields["dflash.target_layers"].contents() == [1, 3, 5] == header.value("dflash.target_layers")
    assert {tensor.name: tensor.data_offset for tensor in reader.tensors} == {
        name: place.begin for name, place in header.tensors.items()
    }
    norm = next(tensor for tensor in reader.tensors if tensor.name == "output_norm.weight")
    assert norm.data.tolist() == loaded(tmp_path / "d.gguf").state_dict()["norm.weight"].tolist()


def test_where_the_weights_come_from_is_told(drafter: Path, target: Path, tmp_path: Path) -> None:
    card = "---\nlicense: apache-2.0\nbase_model:\n- some-org/Some-Target-8B\ntags: [x]\n---\n# A drafter\n"
    (drafter / "README.md").write_text(card)
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    header = read_header(tmp_path / "d.gguf")
    assert header.value("general.license") == "apache-2.0"
    assert header.value("general.name") == "DFlash 2 drafter for some-org/Some-Target-8B"
    assert header.value("general.base_model.count") == 1
    assert header.value("general.base_model.0.name") == "some-org/Some-Target-8B"
    assert header.value("general.base_model.0.repo_url") == "https://huggingface.co/some-org/Some-Target-8B"
    assert header.value("general.source.files") == [b"config.json", b"model.safetensors"]
    hashes = [digest(drafter / name).encode() for name in ("config.json", "model.safetensors")]
    assert header.value("general.source.sha256") == hashes


def test_without_a_card_the_target_is_the_base_model_and_no_licence_is_claimed(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    header = read_header(tmp_path / "d.gguf")
    assert "general.license" not in header.keys
    assert header.value("general.base_model.0.name") == "toy-org/toy-target"


def test_causality_is_told_always(tmp_path: Path, target: Path) -> None:
    for causal in (False, True):
        folder = saved(toy_drafter(layer_causal=(causal, causal)), tmp_path / f"{causal}")
        export(folder, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
        assert read_header(tmp_path / "d.gguf").value("dflash.attention.causal") is causal


def test_progress_goes_from_nothing_to_everything(drafter: Path, target: Path, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32", progress=lambda *step: told.append(step))
    for doing in ("checking every weight", "writing f32"):
        shares = [share for what, share in told if what == doing]
        assert shares == sorted(shares)
        assert len(shares) == 36
        assert shares[-1] == 1.0


def test_the_axes_of_the_targets_positions_are_told(drafter: Path, tmp_path: Path) -> None:
    target = write_target(tmp_path / "mrope.gguf", rope__dimension_sections=[11, 11, 10, 0])
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    assert read_header(tmp_path / "d.gguf").value("dflash.rope.dimension_sections") == [4, 0, 0, 0]
    assert json.dumps(loaded(tmp_path / "d.gguf").config.rope_parameters) == '{"rope_type": "default", "rope_theta": 10000.0}'
