"""T-V2KEY: every tensor of a checkpoint is consumed or refused by name, held against the config before a weight is read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dflash2_core.checkpoint import open_checkpoint, optional_tensor_shapes, reading, tensor_shapes, write_checkpoint
from dflash2_core.config import DrafterConfig
from dflash2_core.errors import CheckpointError, ConfigError
from tests.core.toys import drafter_config

Weights = dict[str, Tensor]
ALL_NAMES = tuple(tensor_shapes(drafter_config()))
CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")


def store(folder: Path, weights: Weights) -> Path:
    """Put other weights beside the config."""
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def test_a_checkpoint_gives_back_what_was_stored(folder: Path, config: DrafterConfig, weights: Weights) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == config
    assert checkpoint.layout == "zlab"
    assert checkpoint.files == (folder / "model.safetensors",)
    assert checkpoint.tensor_names == ALL_NAMES
    assert checkpoint.shapes == tensor_shapes(config)
    assert set(checkpoint.dtypes.values()) == {torch.float32}
    assert checkpoint.num_parameters == config.num_parameters
    assert checkpoint.num_bytes == 4 * config.num_parameters
    read = dict(checkpoint.tensors())
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name]) for name in weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_each_float_type_is_read_bit_by_bit(folder: Path, weights: Weights, dtype: torch.dtype) -> None:
    stored = {name: tensor.to(dtype) for name, tensor in weights.items()}
    checkpoint = open_checkpoint(store(folder, stored))
    assert set(checkpoint.dtypes.values()) == {dtype}
    assert all(torch.equal(checkpoint.tensor(name), stored[name]) for name in stored)


def test_types_may_be_mixed(folder: Path, weights: Weights) -> None:
    stored = {name: tensor if tensor.ndim == 1 else tensor.bfloat16() for name, tensor in weights.items()}
    checkpoint = open_checkpoint(store(folder, stored))
    assert set(checkpoint.dtypes.values()) == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_both_names_of_a_tensor_load(folder: Path, weights: Weights, prefix: str, suffix: str) -> None:
    stored = {f"{prefix}{name}{suffix if name in CODEBOOKS else ''}": tensor for name, tensor in weights.items()}
    checkpoint = open_checkpoint(store(folder, stored))
    assert checkpoint.tensor_names == ALL_NAMES
    assert all(torch.equal(checkpoint.tensor(name), weights[name]) for name in weights)


@pytest.mark.parametrize("name", ["norm.weight", CODEBOOKS[0]])
def test_a_tensor_under_both_its_names_is_refused(folder: Path, weights: Weights, name: str) -> None:
    second = f"{name}.weight" if name in CODEBOOKS else f"model.{name}"
    with pytest.raises(CheckpointError, match=f"{name} is stored twice"):
        open_checkpoint(store(folder, weights | {second: weights[name].clone()}))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_missing_tensor_is_named(folder: Path, weights: Weights, name: str) -> None:
    del weights[name]
    with pytest.raises(CheckpointError, match=f"1 of {len(ALL_NAMES)} tensors missing: {name}"):
        open_checkpoint(store(folder, weights))


def test_a_loader_that_lets_a_tensor_be_missing_is_seen(
    folder: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "tensor_shapes", lambda config: {})
    monkeypatch.setattr(reading, "optional_tensor_shapes", lambda config: tensor_shapes(config))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_missing_tensor_is_named(folder, weights, CODEBOOKS[1])


SURPLUS = {
    "layers.2.mlp.up_proj.weight": "the config has no place for it",
    "layers.0.self_attn.q_proj.bias": "no biases",
    "layers.0.self_attn.q_proj.weight_scale": "quantised",
    "layers.0.mlp.gate_proj.qweight": "quantised",
    "layers.0.mlp.gate_proj.g_idx": "quantised",
    "layers.0.mlp.gate_proj.weight_packed": "quantised",
    "d2t": "reduced draft vocabulary",
    "t2d": "reduced draft vocabulary",
    "layers.0.self_attn.attention_sink_bias": "sinks",
    "verifier_norm.weight": "belongs to the target",
    "mask_hidden": "mask_embedding",
    "rotary_emb.inv_freq": "the config has no place for it",
}


@pytest.mark.parametrize("name", SURPLUS)
def test_a_surplus_tensor_is_refused_by_name_with_the_reason(folder: Path, weights: Weights, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"{SURPLUS[name]}.*: {name}"):
        open_checkpoint(store(folder, weights | {name: torch.zeros(3)}))


def test_a_loader_that_drops_what_it_does_not_know_is_seen(
    folder: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above."""
    monkeypatch.setattr(reading, "_surplus_problems", lambda config, surplus: [])
    with pytest.raises(pytest.fail.Exception):
        test_a_surplus_tensor_is_refused_by_name_with_the_reason(folder, weights, "rotary_emb.inv_freq")


def test_tensors_of_the_second_version_under_a_config_of_the_first_are_refused(tmp_path: Path, weights: Weights) -> None:
    first = drafter_config(version=1)
    write_checkpoint(first, {name: weights[name] for name in tensor_shapes(first)}, tmp_path)
    with pytest.raises(CheckpointError, match="DFlash 2 never runs as DFlash 1: candidate_selector"):
        open_checkpoint(store(tmp_path, weights))


def test_tensors_of_the_first_version_under_a_config_of_the_second_are_refused(folder: Path, weights: Weights) -> None:
    kept = {name: weights[name] for name in tensor_shapes(drafter_config(version=1))}
    with pytest.raises(CheckpointError, match=r"tensors missing: .*attention_conv"):
        open_checkpoint(store(folder, kept))


@pytest.mark.parametrize("name", [name for name in ALL_NAMES if not name.startswith("layers.1")])
def test_a_shape_unlike_the_configs_is_refused_with_both(folder: Path, weights: Weights, name: str) -> None:
    found = list(weights[name].shape)
    found[-1] += 1
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(store(folder, weights | {name: torch.zeros(found)}))
    assert f"{name} has shape {found}" in str(error.value)
    assert str(list(weights[name].shape)) in str(error.value)


def test_a_transposed_codebook_is_refused(folder: Path, weights: Weights) -> None:
    with pytest.raises(CheckpointError, match=r"shape \[7, 37\] .* asks for \[37, 7\]"):
        open_checkpoint(store(folder, weights | {CODEBOOKS[0]: weights[CODEBOOKS[0]].T}))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.bool])
def test_weights_that_are_no_floats_are_refused(folder: Path, weights: Weights, dtype: torch.dtype) -> None:
    """T-QDRAFT, at the door."""
    name = "layers.0.self_attn.q_proj.weight"
    with pytest.raises(CheckpointError, match=f"{name} is stored as .*quantised weights are not read"):
        open_checkpoint(store(folder, weights | {name: weights[name].to(dtype)}))


def test_packed_weights_taken_for_numbers_are_seen(folder: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reading.DTYPES, "I8", torch.int8)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_weights_that_are_no_floats_are_refused(folder, weights, torch.int8)


def test_no_weight_is_read_before_all_is_known_to_fit(folder: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: object, **__: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(reading, "safe_open", touched)
    open_checkpoint(folder)
    with pytest.raises(CheckpointError, match="shape"):
        open_checkpoint(store(folder, weights | {"fc.weight": torch.zeros(2, 2)}))


def test_everything_that_is_wrong_is_named_at_once(folder: Path, weights: Weights) -> None:
    del weights["fc.weight"]
    stored = weights | {"surprise": torch.zeros(1), "norm.weight": torch.zeros(3), "d2t": torch.zeros(1)}
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(store(folder, stored))
    for name in ("fc.weight", "surprise", "norm.weight", "d2t"):
        assert name in str(error.value)
    assert "4 problems" in str(error.value)


@pytest.mark.parametrize("name", optional_tensor_shapes(drafter_config()))
def test_what_a_drafter_has_of_its_own_is_read(folder: Path, config: DrafterConfig, weights: Weights, name: str) -> None:
    """T-VOCAB: decided by presence."""
    own = torch.randn(optional_tensor_shapes(config)[name])
    checkpoint = open_checkpoint(store(folder, weights | {name: own}))
    assert checkpoint.tensor_names == (*ALL_NAMES, name)
    assert torch.equal(checkpoint.tensor(name), own)


@pytest.mark.parametrize("rows", [16, 36, 38, 40])
def test_a_head_of_another_vocabulary_is_refused(folder: Path, weights: Weights, rows: int) -> None:
    with pytest.raises(CheckpointError, match=r"lm_head.weight has shape"):
        open_checkpoint(store(folder, weights | {"lm_head.weight": torch.zeros(rows, 16)}))


def test_a_config_that_is_wrong_is_the_configs_error(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"block_size": 8', '"block_size": 1'))
    with pytest.raises(ConfigError, match="block_size"):
        open_checkpoint(folder)


def test_a_file_that_changes_after_opening_is_a_checkpoint_error(folder: Path, weights: Weights) -> None:
    checkpoint = open_checkpoint(folder)
    store(folder, weights | {"fc.weight": torch.zeros(2, 2)})
    with pytest.raises(CheckpointError, match="changed"):
        checkpoint.tensor("fc.weight")
    (folder / "model.safetensors").write_bytes(b"gone")
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.tensor("norm.weight")
    with pytest.raises(CheckpointError, match="no tensor 'surprise'"):
        checkpoint.tensor("surprise")
