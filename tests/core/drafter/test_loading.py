"""Checkpoints to drafters and back."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash2_core import Drafter, errors, load_drafter, save_drafter
from dflash2_core.checkpoint import open_checkpoint, reading, tensor_shapes, write_checkpoint
from dflash2_core.drafter import loading
from tests.core.drafter.conftest import Borrowed
from tests.core.toys import random_drafter, randomise

VARIANTS = {
    "DFlash 2": {},
    "DFlash 2, sliding": {"layer_windows": (5, 5)},
    "DFlash 2, causal, kernel 4, five taps": {
        "layer_causal": (True, True),
        "conv_kernel_size": 4,
        "target_layer_ids": (4, 0, 3, 1, 2),
    },
    "DFlash 1": {"version": 1},
}
OPTIONAL = ["embed_tokens.weight", "lm_head.weight", "mask_embedding"]


def drafts(drafter: Drafter, target: Borrowed) -> list[int]:
    context = drafter.new_context()
    context.join()
    taps = torch.randn(1, 9, drafter.fc.in_features, generator=torch.Generator().manual_seed(0))
    context.append(taps, [9])
    draft = target.propose(drafter, context, [3], [7])
    assert draft.proposal.lengths.tolist() == [7]
    return draft.tokens(0)


def with_own(parts: list[str]) -> Drafter:
    drafter = Drafter(random_drafter().config, own=parts)
    randomise(drafter, 3)
    return drafter.requires_grad_(False)


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_drafter_comes_back_with_the_same_weights_and_drafts(
    variant: str, layout: str, tmp_path: Path, target: Borrowed
) -> None:
    drafter = random_drafter(seed=1, **VARIANTS[variant])
    if layout == "speculators" and True in drafter.config.layer_causal:  # that layout has no words for it, and says so
        with pytest.raises(errors.ConfigError, match="caus"):
            save_drafter(drafter, tmp_path, layout=layout)
        return
    save_drafter(drafter, tmp_path, layout=layout)
    loaded = load_drafter(tmp_path)
    assert loaded.config.to_dict() == drafter.config.to_dict()
    assert loaded.state_dict().keys() == drafter.state_dict().keys()
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert drafts(loaded, target) == drafts(drafter, target)


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saving_is_byte_stable_however_often_it_goes_round(dtype: torch.dtype, layout: str, tmp_path: Path) -> None:
    folder = tmp_path / "0"
    save_drafter(random_drafter(seed=1).to(dtype), folder, layout=layout)
    for i in range(1, 3):
        again = tmp_path / str(i)
        save_drafter(load_drafter(folder), again, layout=layout)
        for file in ("config.json", "model.safetensors"):
            assert (again / file).read_bytes() == (folder / file).read_bytes()
        folder = again


@pytest.mark.parametrize("parts", [OPTIONAL[:1], OPTIONAL[1:2], OPTIONAL[2:], OPTIONAL])
def test_what_a_drafter_brings_of_its_own_is_saved_and_loaded(parts: list[str], tmp_path: Path, target: Borrowed) -> None:
    drafter = with_own(parts)
    save_drafter(drafter, tmp_path)
    loaded = load_drafter(tmp_path)
    assert {name for name in OPTIONAL if name in loaded.state_dict()} == set(parts)
    assert drafts(loaded, target) == drafts(drafter, target) != drafts(random_drafter(), target)


def test_dtype_and_device_are_as_asked_and_else_as_stored(tmp_path: Path) -> None:
    save_drafter(random_drafter(seed=1).to(torch.bfloat16), tmp_path)
    assert {p.dtype for p in load_drafter(tmp_path).parameters()} == {torch.bfloat16}
    for dtype in (torch.float32, torch.float16):
        loaded = load_drafter(tmp_path, dtype=dtype, device="cpu")
        assert {p.dtype for p in loaded.parameters()} == {dtype}
        assert {p.device.type for p in loaded.parameters()} == {"cpu"}
        assert loaded.rotary.frequencies.dtype == torch.float32
        assert not loaded.training
        assert not any(p.requires_grad for p in loaded.parameters())
    meta = load_drafter(tmp_path, device="meta")
    assert {p.device.type for p in meta.parameters()} == {meta.rotary.frequencies.device.type} == {"meta"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_modules_hold_exactly_the_tensors_of_the_checkpoint_format(variant: str) -> None:
    drafter = random_drafter(**VARIANTS[variant])
    held = {name: tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}
    assert held == tensor_shapes(drafter.config)
    assert sum(p.numel() for p in drafter.parameters()) == drafter.config.num_parameters


@pytest.mark.parametrize("name", list(tensor_shapes(random_drafter(num_hidden_layers=1).config)))
def test_a_missing_tensor_is_refused_by_name(name: str, tmp_path: Path) -> None:
    save_drafter(random_drafter(num_hidden_layers=1), tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    del tensors[name]
    save_file(tensors, weights)
    with pytest.raises(errors.CheckpointError, match=name):
        load_drafter(tmp_path)


@pytest.mark.parametrize("name", ["layers.2.input_layernorm.weight", "layers.0.self_attn.q_proj.bias", "surprise"])
def test_an_extra_tensor_is_refused_by_name(name: str, tmp_path: Path) -> None:
    save_drafter(random_drafter(), tmp_path)
    weights = tmp_path / "model.safetensors"
    save_file(load_file(weights) | {name: torch.zeros(16)}, weights)
    with pytest.raises(errors.CheckpointError, match=name):
        load_drafter(tmp_path)


def test_a_loaded_drafter_that_is_changed_changes_neither_its_file_nor_another(tmp_path: Path) -> None:
    save_drafter(random_drafter(seed=1), tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    changed, other = load_drafter(tmp_path), load_drafter(tmp_path)
    kept = other.fc.weight.clone()
    changed.fc.weight.zero_()
    assert torch.equal(other.fc.weight, kept)
    assert torch.equal(load_drafter(tmp_path).fc.weight, kept)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_weights_that_two_loaded_drafters_share_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = functools.cache(reading.read_tensor)
    monkeypatch.setattr(reading, "read_tensor", lambda entry: read(entry))
    with pytest.raises(AssertionError):
        test_a_loaded_drafter_that_is_changed_changes_neither_its_file_nor_another(tmp_path)


MIXTURES = {
    "bf16 matrices": lambda name, tensor: tensor.bfloat16() if tensor.ndim > 1 else tensor,
    "bf16 convolutions": lambda name, tensor: tensor.bfloat16() if "conv" in name else tensor,
    "an F64 fc": lambda name, tensor: tensor.double() if name == "fc.weight" else tensor.half(),
    "bf16 beside fp16": lambda name, tensor: tensor.half() if "norm" in name else tensor.bfloat16(),
}
WIDEST = {"an F64 fc": torch.float64}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_a_checkpoint_of_several_types_is_loaded_in_the_widest_and_drafts(
    mixture: str, tmp_path: Path, target: Borrowed
) -> None:
    drafter = random_drafter(seed=1, layer_windows=(5, 5))
    stored = {name: MIXTURES[mixture](name, tensor) for name, tensor in drafter.state_dict().items()}
    write_checkpoint(drafter.config, stored, tmp_path)
    loaded = load_drafter(tmp_path)
    widest = WIDEST.get(mixture, torch.float32)
    assert {p.dtype for p in loaded.parameters()} == {widest}
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, stored[name].to(widest)), name
    wide = Borrowed(embedding=target.embedding.to(widest), head=target.head.to(widest))
    assert len(drafts(loaded, wide)) == 7


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_a_dtype_may_be_named(name: str, tmp_path: Path) -> None:
    save_drafter(random_drafter(), tmp_path)
    assert {p.dtype for p in load_drafter(tmp_path, dtype=name).parameters()} == {getattr(torch, name)}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": torch.int8}, "dtype is 'torch.int8': expected one of float64, float32, float16, bfloat16"),
        ({"dtype": "int8"}, "dtype is 'int8': expected one of"),
        ({"dtype": "half a float"}, "dtype is 'half a float': expected one of"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used here"),
        ({"device": "abacus"}, "device 'abacus' cannot be used here"),
    ],
)
def test_a_dtype_or_device_that_cannot_be_is_refused_in_a_sentence(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    save_drafter(random_drafter(), tmp_path)
    with pytest.raises(errors.CompatibilityError, match=reason) as error:
        load_drafter(tmp_path, **options)
    assert "\n" not in str(error.value)


SPOILT = [
    ("layers.1.self_attn.k_norm.weight", float("nan")),
    ("candidate_selector.successor_codebook", float("inf")),
    ("mask_embedding", -float("inf")),
]


@pytest.mark.parametrize(("name", "value"), SPOILT)
def test_a_weight_that_is_no_finite_number_is_refused_by_name(name: str, value: float, tmp_path: Path) -> None:
    drafter = with_own(["mask_embedding"]).bfloat16()
    drafter.get_parameter(name).flatten()[-1] = value
    save_drafter(drafter, tmp_path)
    for dtype in (None, torch.float32):
        with pytest.raises(errors.CheckpointError, match=f"{name} holds values that are no finite numbers"):
            load_drafter(tmp_path, dtype=dtype)
    with pytest.raises(errors.CheckpointError, match=f"{name} holds values that are no finite numbers"):
        open_checkpoint(tmp_path).require_finite()


def test_a_weight_that_the_dtype_asked_for_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    drafter = random_drafter()
    drafter.fc.weight[3, 5] = 1e5
    save_drafter(drafter, tmp_path)
    assert load_drafter(tmp_path, dtype="bfloat16").fc.weight.isfinite().all()
    with pytest.raises(errors.CheckpointError, match=r"fc\.weight holds values too large for float16"):
        load_drafter(tmp_path, dtype="float16")


def test_weights_that_nobody_looks_at_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "is_finite", lambda tensor: True)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_weight_that_is_no_finite_number_is_refused_by_name(*SPOILT[0], tmp_path)
