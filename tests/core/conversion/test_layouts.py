"""z-lab <-> speculators: the same drafter, bit by bit, or a refusal that names what would be lost."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash2_core import Drafter, load_drafter, save_drafter
from dflash2_core.checkpoint import open_checkpoint
from dflash2_core.conversion import convert, folders, open_source
from dflash2_core.errors import CheckpointError, CompatibilityError, ConfigError
from tests.core.toys import drafter_config, randomise
from tests.gguf.toys import block_logits

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "truncate": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "windows": {"layer_windows": (4, 4)},
    "causal": {"layer_windows": (4, 4), "layer_causal": (True, True)},
    "mixed": {"layer_windows": (4, None), "layer_causal": (True, False)},
    "whole context": {},
    "DFlash 1": {"version": 1, "layer_windows": (4, 4)},
    "yarn": {"rope_parameters": YARN},
}
UNSAYABLE: dict[str, dict[str, Any]] = {
    "output_multiplier": {"output_multiplier": 0.19611613513818404},
    "final_logit_softcapping": {"final_logit_softcapping": 20.0},
    "input_embedding_scale": {"input_embedding_scale": 2.0},
    "a causal layer without a window": {"layer_causal": (True, True)},
    "target_hidden_size": {"target_hidden_size": 24},
    "conv_kernel_size is 9 and block_size is 8": {"conv_kernel_size": 9},
    "pad_token_id is 37 and vocab_size is 37": {"pad_token_id": 37},
}


def toy(own: tuple[str, ...] = (), dtype: torch.dtype = torch.float32, **changes: Any) -> Drafter:
    drafter = Drafter(drafter_config(**changes), own)
    randomise(drafter, 0)
    return drafter.to(dtype).requires_grad_(False).eval()


def saved(drafter: Drafter, folder: Path, layout: str = "zlab") -> Path:
    save_drafter(drafter, folder, layout=layout)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_is_the_same_bytes_and_the_same_logits(kind: str, tmp_path: Path) -> None:
    source = saved(toy(**KINDS[kind]), tmp_path / "source")
    there = convert(open_source(source), tmp_path / "there", layout="speculators")
    back = convert(open_source(there.path), tmp_path / "back", layout="zlab")
    assert open_checkpoint(there.path).layout == "speculators"
    assert (there.notes, back.notes) == ([], [])
    assert files(back.path) == files(source)
    logits = block_logits(load_drafter(source), committed=11)
    assert torch.equal(block_logits(load_drafter(there.path), committed=11), logits)
    assert torch.equal(block_logits(load_drafter(back.path), committed=11), logits)


def test_a_drafter_in_bfloat16_keeps_every_bit(tmp_path: Path) -> None:
    source = saved(toy(dtype=torch.bfloat16), tmp_path / "source")
    done = convert(open_source(source), tmp_path / "there", layout="speculators")
    assert set(done.parameters_by_type) == {"bfloat16"}
    assert (done.path / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize("reason", UNSAYABLE)
def test_what_speculators_would_lose_is_refused_by_name_and_nothing_is_written(reason: str, tmp_path: Path) -> None:
    source = open_source(saved(toy(**UNSAYABLE[reason]), tmp_path / "source"))
    with pytest.raises((ConfigError, CompatibilityError), match=reason):
        convert(source, tmp_path / "there", layout="speculators")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("own", ["embed_tokens.weight", "lm_head.weight", "mask_embedding"])
def test_a_table_of_its_own_is_refused_by_name_for_speculators_and_kept_in_zlab(own: str, tmp_path: Path) -> None:
    source = open_source(saved(toy(own=(own,)), tmp_path / "source"))
    with pytest.raises(CompatibilityError, match=f"brings its own {own}"):
        convert(source, tmp_path / "there", layout="speculators")
    assert own in open_checkpoint(convert(source, tmp_path / "copy", layout="zlab").path).tensor_names


def test_shards_and_both_names_of_the_codebooks_become_one_file_of_canonical_names(tmp_path: Path) -> None:
    source = saved(toy(), tmp_path / "source")
    whole = (source / "model.safetensors").read_bytes()
    shard(source, renamed=lambda name: f"model.{name}" + (".weight" if name.endswith("codebook") else ""))
    assert len(list(source.glob("*.safetensors"))) == 2
    done = convert(open_source(source), tmp_path / "copy", layout="zlab")
    assert set(files(done.path)) == {"config.json", "model.safetensors"}
    assert (done.path / "model.safetensors").read_bytes() == whole


def shard(folder: Path, renamed: Any) -> None:
    """The weights of `folder` in two files, under other names that are read as the same."""
    weights = {renamed(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    shards = {f"model-0000{i + 1}-of-00002.safetensors": dict(list(weights.items())[i::2]) for i in range(2)}
    for name, part in shards.items():
        save_file(part, folder / name)
    places = {tensor: name for name, part in shards.items() for tensor in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_the_name_of_the_target_is_kept_where_the_layout_has_a_place_for_it_else_told(tmp_path: Path) -> None:
    source = open_source(saved(toy(), tmp_path / "source"))
    verifier = {"name_or_path": "some/target", "architectures": ["Qwen3ForCausalLM"]}
    there = convert(source, tmp_path / "there", layout="speculators", verifier=verifier)
    again = convert(open_source(there.path), tmp_path / "again", layout="speculators")
    assert json.loads((again.path / "config.json").read_text())["speculators_config"]["verifier"] == verifier
    assert files(again.path) == files(there.path)
    lost = convert(open_source(there.path), tmp_path / "back", layout="zlab")
    assert lost.notes == ["the target's name (some/target) is not kept: the layout zlab has no place for it"]


def test_card_and_licence_go_with_the_weights_and_other_files_do_not(tmp_path: Path) -> None:
    source = saved(toy(), tmp_path / "source")
    for name in ("README.md", "LICENSE", "License.txt", "notes.txt", "tokenizer.json"):
        (source / name).write_text(name)
    (source / "NOTICE").symlink_to(__file__)  # leads out of the folder
    done = convert(open_source(source), tmp_path / "there", layout="speculators")
    assert set(files(done.path)) == {"config.json", "model.safetensors", "README.md", "LICENSE", "License.txt"}


def test_another_dtype_is_told_where_it_rounds_and_refused_where_it_overflows(tmp_path: Path) -> None:
    source = open_source(saved(toy(), tmp_path / "source"))
    wider = convert(source, tmp_path / "wide", layout="zlab", dtype=torch.float64)
    narrow = convert(source, tmp_path / "narrow", layout="zlab", dtype=torch.bfloat16)
    assert wider.notes == []
    assert narrow.notes == ["bfloat16 rounds values of 36 tensors"]
    assert set(narrow.parameters_by_type) == {"bfloat16"}
    loud = toy()
    loud.fc.weight.data[0, 0] = 1e6
    with pytest.raises(CheckpointError, match=r"fc.weight holds 1e\+06, which is too large for float16"):
        convert(open_source(saved(loud, tmp_path / "loud")), tmp_path / "half", layout="zlab", dtype=torch.float16)
    assert not (tmp_path / "half").exists()


@pytest.mark.parametrize("there", ["a file", "a drafter", "a link"])
def test_what_is_there_already_is_not_written_over(there: str, tmp_path: Path) -> None:
    source, out = saved(toy(), tmp_path / "source"), tmp_path / "out"
    match there:
        case "a file":
            out.write_text("mine")
        case "a drafter":
            saved(toy(), out)
        case _:
            out.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is there already"):
        convert(open_source(source), out, layout="zlab")


def test_an_empty_folder_is_filled_and_a_missing_parent_is_told(tmp_path: Path) -> None:
    source = open_source(saved(toy(), tmp_path / "source"))
    (tmp_path / "empty").mkdir()
    convert(source, tmp_path / "empty", layout="zlab")
    assert open_checkpoint(tmp_path / "empty").config == source.config
    with pytest.raises(CheckpointError, match="is no folder: make it first"):
        convert(source, tmp_path / "nowhere" / "out", layout="zlab")


def test_a_write_that_went_wrong_is_seen_when_it_is_read_back_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant writes one bit otherwise."""
    source, write = open_source(saved(toy(), tmp_path / "source")), folders.write_checkpoint

    def spoiling(config: Any, tensors: Any, path: Path, **options: Any) -> None:
        write(config, {name: flipped(tensor) if name == "norm.weight" else tensor for name, tensor in tensors.items()}, path)

    monkeypatch.setattr(folders, "write_checkpoint", spoiling)
    with pytest.raises(CheckpointError, match="norm.weight was not written as it is"):
        convert(source, tmp_path / "there", layout="zlab")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def flipped(tensor: Tensor) -> Tensor:
    copy = tensor.clone()
    copy.view(torch.int32)[0] ^= 1
    return copy


def test_a_config_that_does_not_survive_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant loses a window."""
    source, write = open_source(saved(toy(layer_windows=(4, 4)), tmp_path / "source")), folders.write_checkpoint
    monkeypatch.setattr(
        folders,
        "write_checkpoint",
        lambda config, *rest, **options: write(replace(config, layer_windows=(4, None)), *rest, **options),
    )
    with pytest.raises(CheckpointError, match="did not survive"):
        convert(source, tmp_path / "there", layout="zlab")


def test_a_disk_that_is_full_is_a_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(saved(toy(), tmp_path / "source"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders, "carry_cards", full)
    with pytest.raises(CheckpointError, match="out cannot be written: No space left on device"):
        convert(source, tmp_path / "out", layout="zlab")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
