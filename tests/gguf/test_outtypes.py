"""What each type keeps of a weight, and which tensors have it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

import gguf_export.outtypes
from dflash2_core import load_drafter
from dflash2_core.assets import tiny_pair
from gguf_export import OUTTYPES, export, read
from gguf_export.header import read_header
from gguf_export.outtypes import converted
from gguf_export.reading import _can_dequantise
from tests.gguf.toys import saved, toy_drafter, write_target

ERROR = {
    # relative error of a matrix of normal weights, root mean square, at most
    "f32": 0.0,
    "f16": 3e-4,
    "bf16": 3e-3,
    "q8_0": 0.007,
    "q5_1": 0.045,
    "q5_0": 0.055,
    "q4_1": 0.09,
    "q4_0": 0.11,
}


@pytest.mark.parametrize("outtype", OUTTYPES)
def test_weights_come_back_as_near_as_the_type_allows(outtype: str, tmp_path: Path) -> None:
    pair = tiny_pair()
    done = export(pair.drafter, tmp_path / "d.gguf", tokenizer_from=pair.target, outtype=outtype)
    assert set(done.parameters_by_type) == {outtype.upper(), "F32"}
    config, tensors = read(tmp_path / "d.gguf")
    before = load_drafter(pair.drafter, dtype="float32")
    assert config.eos_token_ids == (0,)  # the tokenizer's; the drafter's own config knows one more
    assert replace(config, eos_token_ids=before.config.eos_token_ids) == before.config
    stored = Counter(str(tensor.dtype) for tensor in tensors.values())
    assert stored["torch.float32"] >= 12
    for name, weights in before.state_dict().items():
        error = (tensors[name].float() - weights).pow(2).mean().sqrt() / weights.pow(2).mean().sqrt()
        limit = ERROR[outtype] if weights.ndim == 2 else 0.0  # bfloat16 norms are exact in F32
        assert error <= limit + (1e-7 if outtype == "f16" else 0.0), f"{name}: {error}"


def test_norms_and_base_kernels_are_f32_whatever_the_type(tmp_path: Path, drafter: Path, target: Path) -> None:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="bf16")
    kinds = {name: place.kind.name for name, place in read_header(tmp_path / "d.gguf").tensors.items()}
    assert {name for name, kind in kinds.items() if kind == "F32"} == {
        name for name in kinds if "norm" in name or name.endswith("conv_base")
    }
    assert set(kinds.values()) == {"F32", "BF16"}


def test_rows_that_hold_no_whole_blocks_are_f16(tmp_path: Path, drafter: Path, target: Path) -> None:
    done = export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="q8_0")
    assert done.parameters_by_type["F16"] > done.parameters_by_type.get("Q8_0", 0)
    kinds = {name: place.kind.name for name, place in read_header(tmp_path / "d.gguf").tensors.items()}
    assert kinds["selector_predecessor.weight"] == "F16"  # rank 7
    assert kinds["fc.weight"] == "F16"  # 48 columns


@pytest.mark.parametrize("kind", OUTTYPES.values(), ids=OUTTYPES)
def test_converting_in_pieces_changes_nothing(kind: GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.randn(7, 3, 64, generator=torch.Generator().manual_seed(0))
    whole = quantize(weights.numpy().reshape(-1, 64), kind).tobytes()
    for piece in (1, 64, 150, 10_000):
        monkeypatch.setattr(gguf_export.outtypes, "PIECE", piece)
        assert converted(weights, kind).tobytes() == whole


@pytest.mark.parametrize("kind", [k for k in GGMLQuantizationType if _can_dequantise(k)], ids=lambda kind: kind.name)
def test_every_type_that_gguf_can_dequantise_is_read(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    """Whoever made the file: llama.cpp's own tools write more types than an exporter can."""
    wide = {"hidden_size": 256, "target_hidden_size": 256, "target_layer_ids": (1,)}
    target = write_target(tmp_path / "t.gguf", embedding_length=256)
    folder = saved(toy_drafter(**wide), tmp_path / "drafter")
    export(folder, tmp_path / "f32.gguf", tokenizer_from=target, outtype="f32")
    header, data = read_header(tmp_path / "f32.gguf"), (tmp_path / "f32.gguf").read_bytes()
    block, size = GGML_QUANT_SIZES[kind]
    raw = np.full(256 * 256 // block * size, 0x12, dtype=np.uint8)  # finite whatever it is taken for
    writer = GGUFWriter(tmp_path / "q.gguf", "dflash")
    for name, key in header.keys.items():
        if name != "general.architecture":
            writer.add_key_value(name, key.value, key.kind, key.item)
    for name, place in header.tensors.items():
        length, stored = (raw.size, kind) if name == "fc.weight" else (place.num_bytes, place.kind)
        writer.add_tensor_info(name, place.shape, np.dtype(np.float32), length, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, place in header.tensors.items():
        writer.write_tensor_data(raw if name == "fc.weight" else np.frombuffer(data, np.uint8, place.num_bytes, place.begin))
    writer.close()
    _, tensors = read(tmp_path / "q.gguf")
    assert tensors["fc.weight"].shape == (256, 256)
    expected = torch.from_numpy(dequantize(raw.reshape(256, -1), kind).reshape(256, 256))
    assert torch.equal(tensors["fc.weight"].float(), expected.float())
    assert expected.any()
