"""Writing is byte-stable, whole or not at all, and what other libraries read."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from dflash2_core.checkpoint import open_checkpoint, tensor_shapes, write_checkpoint, writing
from dflash2_core.config import DrafterConfig
from dflash2_core.errors import CheckpointError, ConfigError
from tests.core.config.strategies import configs
from tests.core.toys import drafter_config

Weights = dict[str, Tensor]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
def test_a_checkpoint_read_and_written_again_is_the_same_bytes(
    tmp_path: Path, config: DrafterConfig, weights: Weights, layout: str
) -> None:
    mixed = {name: tensor.bfloat16() if tensor.ndim > 1 else tensor for name, tensor in weights.items()}
    write_checkpoint(config, mixed, tmp_path / "a", layout=layout, metadata={"seed": "1", "base": "x", "format": "pt"})
    first = open_checkpoint(tmp_path / "a")
    assert first.layout == layout
    shuffled = dict(reversed(list(first.tensors())))
    write_checkpoint(first.config, shuffled, tmp_path / "b", layout=first.layout, metadata=first.metadata)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert set(bytes_of(tmp_path / "a")) == {"config.json", "model.safetensors"}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configs())
def test_any_drafter_survives_its_checkpoint(tmp_path: Path, config: DrafterConfig) -> None:
    weights = {name: torch.randn(shape) for name, shape in tensor_shapes(config).items()}
    try:
        write_checkpoint(config, weights, tmp_path)
    except ConfigError:
        return  # no layout has words for every mixture of windows and causality
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == config
    assert all(torch.equal(tensor, weights[name]) for name, tensor in checkpoint.tensors())


def test_the_formats_own_library_reads_it(folder: Path, weights: Weights) -> None:
    read = load_file(folder / "model.safetensors")
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name]) for name in weights)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_the_dtype_is_stated_where_engines_look_for_it(tmp_path: Path, config: DrafterConfig, weights: Weights) -> None:
    write_checkpoint(config, {name: tensor.bfloat16() for name, tensor in weights.items()}, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


def test_views_and_shared_storage_are_written_as_what_they_show(
    tmp_path: Path, config: DrafterConfig, weights: Weights
) -> None:
    weights["fc.weight"] = weights["fc.weight"].T.contiguous().T
    weights["layers.0.input_layernorm.weight"] = weights["norm.weight"]
    weights["hidden_norm.weight"] = torch.nn.Parameter(weights["hidden_norm.weight"])
    write_checkpoint(config, weights, tmp_path)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in open_checkpoint(tmp_path).tensors())


def test_what_is_no_drafter_of_this_config_is_not_written(tmp_path: Path, config: DrafterConfig, weights: Weights) -> None:
    wrong = weights | {"surprise": torch.zeros(1), "norm.weight": torch.zeros(3), "fc.weight": weights["fc.weight"].int()}
    del wrong["hidden_norm.weight"]
    with pytest.raises(CheckpointError) as error:
        write_checkpoint(config, wrong, tmp_path / "new")
    for name in ("surprise", "norm.weight", "fc.weight", "hidden_norm.weight"):
        assert name in str(error.value)
    assert not (tmp_path / "new").exists()


def test_what_a_layout_cannot_say_leaves_no_file(tmp_path: Path, weights: Weights) -> None:
    with pytest.raises(ConfigError):
        write_checkpoint(drafter_config(output_multiplier=0.5), weights, tmp_path / "new", layout="speculators")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("other", ["model.safetensors.index.json", "adapter.safetensors", "mask_embedding.pt"])
def test_a_folder_with_other_weights_is_not_written_into(
    folder: Path, config: DrafterConfig, weights: Weights, other: str
) -> None:
    (folder / other).write_bytes(b"x")
    before = bytes_of(folder)
    with pytest.raises(CheckpointError, match=f"already holds other weights \\({other}\\)"):
        write_checkpoint(config, weights, folder)
    assert bytes_of(folder) == before


def test_a_write_that_fails_leaves_the_old_checkpoint(
    folder: Path, config: DrafterConfig, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = bytes_of(folder)
    monkeypatch.setattr(writing, "_write_safetensors", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write_checkpoint(config, {name: tensor + 1 for name, tensor in weights.items()}, folder)
    assert bytes_of(folder) == before


def test_a_checkpoint_may_be_written_over_while_its_old_weights_are_mapped(
    folder: Path, config: DrafterConfig, weights: Weights
) -> None:
    mapped = dict(open_checkpoint(folder).tensors())
    write_checkpoint(config, {name: tensor + 1 for name, tensor in mapped.items()}, folder)
    assert all(torch.equal(mapped[name], weights[name]) for name in weights)
    assert all(torch.equal(tensor, weights[name] + 1) for name, tensor in open_checkpoint(folder).tensors())


class Dies(BaseException):
    """What a killed process looks like from inside."""


@pytest.mark.parametrize("done", [0, 1])
def test_a_write_that_is_interrupted_between_its_files_leaves_a_folder_that_is_refused(
    folder: Path, config: DrafterConfig, weights: Weights, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New weights under the old config would draft as something else."""
    replace, calls = Path.replace, []

    def dying(self: Path, target: Path) -> Path:
        if len(calls) == done:
            raise Dies
        calls.append(target)
        return replace(self, target)

    other = dataclasses.replace(config, target_layer_ids=(4, 2, 0), mask_token_id=33)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", dying)
        with pytest.raises(Dies):
            write_checkpoint(other, {name: tensor + 1 for name, tensor in weights.items()}, folder)
    assert not any("writing" in name for name in bytes_of(folder))
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        open_checkpoint(folder)
    write_checkpoint(other, weights, folder)
    assert open_checkpoint(folder).config == other


@pytest.mark.parametrize(
    "document",
    [
        '{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 8}',
        '{"speculators_model_type": "eagle3"}',
        '{"hidden_size": 8}',
        "{}",
        "[]",
        "{",
    ],
)
def test_another_models_folder_is_not_written_into(
    tmp_path: Path, config: DrafterConfig, weights: Weights, document: str
) -> None:
    (tmp_path / "config.json").write_text(document)
    (tmp_path / "model.safetensors").write_bytes(b"the target's")
    before = bytes_of(tmp_path)
    with pytest.raises(CheckpointError, match="already holds another model"):
        write_checkpoint(config, weights, tmp_path)
    assert bytes_of(tmp_path) == before


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
def test_a_drafter_is_written_over_whatever_its_layout_and_its_faults(
    tmp_path: Path, config: DrafterConfig, weights: Weights, layout: str
) -> None:
    write_checkpoint(config, weights, tmp_path, layout=layout)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(document | {"surprise": 1}))
    write_checkpoint(config, weights, tmp_path)
    assert open_checkpoint(tmp_path).layout == "zlab"


@pytest.mark.parametrize("metadata", [{"step": 1}, {"step": None}, {1: "step"}, {"step": "\ud800"}, {"\udfff": "1"}])
def test_metadata_that_no_reader_takes_is_not_written(
    tmp_path: Path, config: DrafterConfig, weights: Weights, metadata: dict[str, str]
) -> None:
    with pytest.raises(CheckpointError, match="metadata holds .* expected strings by name"):
        write_checkpoint(config, weights, tmp_path / "new", metadata=metadata)
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_told_in_a_sentence(tmp_path: Path, config: DrafterConfig, weights: Weights) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="cannot be made"):
        write_checkpoint(config, weights, tmp_path / "file")
