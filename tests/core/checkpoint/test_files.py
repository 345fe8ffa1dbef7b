"""T-SEC: which files make a checkpoint, and which make it unsafe or ambiguous."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dflash2_core.checkpoint import files, open_checkpoint
from dflash2_core.errors import CheckpointError, Dflash2Error

Weights = dict[str, Tensor]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(folder: Path, weights: Weights) -> Path:
    """The same checkpoint in two shards."""
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, members in parts.items():
        save_file({name: weights[name] for name in members}, folder / file)
    (folder / "model.safetensors").unlink()
    write_index(folder, {name: file for file, members in parts.items() for name in members})
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def index_of(folder: Path) -> dict[str, str]:
    weight_map: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return weight_map


def test_shards_are_one_checkpoint(sharded: Path, weights: Weights) -> None:
    checkpoint = open_checkpoint(sharded)
    assert [file.name for file in checkpoint.files] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in checkpoint.tensors())


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "../../etc/passwd",
        "/etc/passwd",
        "/tmp/model.safetensors",
        "..\\model.safetensors",
        "sub/model.safetensors",
        "model.bin",
        "..",
        "",
        "model\0.safetensors",
        "m" * 10_000 + ".safetensors",
    ],
)
def test_a_shard_path_that_leaves_the_folder_or_is_no_safetensors_is_refused(sharded: Path, shard: str) -> None:
    (sharded.parent / "model.safetensors").write_bytes(b"outside")
    write_index(sharded, index_of(sharded) | {"norm.weight": shard})
    with pytest.raises(CheckpointError, match="expected a .safetensors file of the same folder"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_link_that_leads_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    (folder / name).rename(folder.parent / name)
    (folder / name).symlink_to(folder.parent / name)
    with pytest.raises(CheckpointError, match=f"{name} leads out of the folder"):
        open_checkpoint(folder)


def test_a_link_inside_the_folder_is_followed(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.data")
    (folder / "model.safetensors").symlink_to("weights.data")
    assert open_checkpoint(folder).num_parameters > 0


def test_the_links_of_a_hub_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    """A cache keeps files in `blobs` and links to them from `snapshots/<revision>`."""
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "abc", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(blobs / f"hash-of-{name}")
        (snapshot / name).symlink_to(f"../../blobs/hash-of-{name}")
    assert open_checkpoint(snapshot).num_parameters > 0


def test_a_loop_of_links_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(CheckpointError):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_pipe_is_refused_and_never_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError):
        open_checkpoint(folder)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is no ordinary file, or missing"):
        open_checkpoint(sharded)


def test_an_index_that_places_a_tensor_elsewhere_is_refused(sharded: Path) -> None:
    weight_map = index_of(sharded)
    other = {"model-00001-of-00002.safetensors": "model-00002-of-00002.safetensors"}
    weight_map["norm.weight"] = other.get(weight_map["norm.weight"], "model-00001-of-00002.safetensors")
    write_index(sharded, weight_map)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(sharded)
    assert "that the index does not place there: norm.weight" in str(error.value)
    assert "that it does not hold: norm.weight" in str(error.value)


def test_a_tensor_in_two_shards_is_refused(sharded: Path, weights: Weights) -> None:
    save_file({"model.norm.weight": weights["norm.weight"]}, sharded / "extra.safetensors")
    write_index(sharded, index_of(sharded) | {"model.norm.weight": "extra.safetensors"})
    with pytest.raises(CheckpointError, match=r"norm.weight is stored twice"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"norm.weight": 3}, {"norm.weight": None}, "x"])
def test_an_index_without_a_map_is_refused(sharded: Path, weight_map: object) -> None:
    write_index(sharded, weight_map)
    with pytest.raises(CheckpointError, match="weight_map"):
        open_checkpoint(sharded)


def test_two_sets_of_weights_are_refused(sharded: Path, weights: Weights) -> None:
    save_file(weights, sharded / "model.safetensors")
    with pytest.raises(CheckpointError, match="two sets of weights"):
        open_checkpoint(sharded)


def test_safetensors_that_nothing_reads_are_refused_by_name(folder: Path) -> None:
    save_file({"x": torch.zeros(1)}, folder / "adapter.safetensors")
    with pytest.raises(CheckpointError, match=r"adapter\.safetensors is no part of this checkpoint"):
        open_checkpoint(folder)


class Trap:
    """Writes a file when unpickled."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.sprung,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "mask_embedding.pt", "model.pth", "weights.pkl", "last.ckpt"])
def test_a_pickle_is_refused_unopened_with_the_way_to_convert_it(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(CheckpointError, match=f"{name} is a pickle.*save_file"):
        open_checkpoint(folder)
    assert not (tmp_path / "sprung").exists()


def test_the_way_to_convert_a_mask_row_works(folder: Path, config: Any) -> None:
    row = torch.randn(config.hidden_size)
    torch.save({"embedding": row, "mask_token_id": config.mask_token_id}, folder / "mask_embedding.pt")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    code = str(error.value).split("convert it once: ")[1].split("; then remove it")[0]
    here = Path.cwd()
    try:
        os.chdir(folder)
        exec("import torch, safetensors.torch; " + code)
    finally:
        os.chdir(here)
    (folder / "mask_embedding.pt").unlink()
    assert torch.equal(open_checkpoint(folder).tensor("mask_embedding"), row)


def test_state_of_a_trainer_beside_the_weights_is_left_alone(folder: Path) -> None:
    for name in ("training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        (folder / name).write_bytes(b"\x80")
    assert open_checkpoint(folder).num_parameters > 0


def test_what_is_no_drafters_folder_is_told_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    empty, gguf_folder = tmp_path / "empty", tmp_path / "gguf"
    empty.mkdir()
    gguf_folder.mkdir()
    gguf = gguf_folder / "d.gguf"
    gguf.write_bytes(b"GGUF\x03\x00\x00\x00")
    cases = {
        tmp_path / "nowhere": "does not exist",
        folder / "model.safetensors": "is a file: expected the folder",
        folder / "config.json": "is a file: expected the folder",
        gguf: "is a GGUF file",
        empty: "has no config.json: expected",
        gguf_folder: "has no config.json but holds GGUF files",
        tmp_path: r"has no config.json, though folders inside it do \(drafter\)",
    }
    for path, sentence in cases.items():
        with pytest.raises(CheckpointError, match=sentence):
            open_checkpoint(path)


@pytest.mark.parametrize("path", ["\0", "x" * 10_000, "/dev/null", ""])
def test_a_path_that_is_none_is_told_in_a_sentence(path: str) -> None:
    with pytest.raises(Dflash2Error):
        open_checkpoint(path)


def test_a_config_without_weights_is_told_in_a_sentence(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        open_checkpoint(folder)


def test_a_targets_folder_is_named_for_what_it_is(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 16}))
    with pytest.raises(Dflash2Error, match="config of another model"):
        open_checkpoint(folder)


def test_a_shard_path_that_is_followed_is_seen(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_add", lambda folder, name, found: found.files.append(folder / name))
    with pytest.raises(AssertionError, match="did not match"):
        test_a_shard_path_that_leaves_the_folder_or_is_no_safetensors_is_refused(sharded, "../model.safetensors")


def test_a_link_that_is_followed_anywhere_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "stays_inside", lambda folder, path: True)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_link_that_leads_out_of_the_folder_is_refused(folder, "model.safetensors")


def test_a_pickle_that_is_opened_is_seen(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(folder: Path) -> list[str]:
        for name in files._pickles(folder):
            pickle.loads((folder / name).read_bytes())
        return list(problems(folder))

    problems = files._pickle_problems
    monkeypatch.setattr(files, "_pickle_problems", opened)
    with pytest.raises(AssertionError):
        test_a_pickle_is_refused_unopened_with_the_way_to_convert_it(folder, tmp_path, "model.pth")
