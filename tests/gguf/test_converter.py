"""What llama.cpp's own converter writes: the same tensors, bit for bit, under the same keys."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash2_core.assets import tiny_pair
from dflash2_core.drafter.model import OWN_EMBEDDING, OWN_HEAD
from gguf_export import export
from gguf_export.header import Header, read_header
from tests.gguf.toys import saved, toy_drafter, write_folder

ROOT = Path(__file__).parents[2]
CONVERTER = ROOT / ".venvs" / "llama-cpp-converter"
OURS_ALONE = {
    "dflash2.num_target_layers",
    "general.source.files",
    "general.source.sha256",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
}
THEIRS_ALONE = {"general.size_label", "tokenizer.chat_template"}
DIFFERENT_ON_PURPOSE = {"general.name"}  # theirs is the folder's name
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "one layer slides; scale, multiplier, softcap; kernel 3": (
        {
            "layer_windows": (None, 12),
            "conv_kernel_size": 3,
            "input_embedding_scale": 3.5,
            "output_multiplier": 0.25,
            "final_logit_softcapping": 2.0,
            "target_layer_ids": (4, 0, 3),
        },
        (),
    ),
    "causal, rope base 1e7, tables of its own": (
        {
            "layer_windows": (12, 12),
            "layer_causal": (True, True),
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
        },
        (OWN_EMBEDDING, OWN_HEAD),
    ),
    "DFlash 1, rope linear": (
        {"version": 1, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        (),
    ),
}


def convert(drafter: Path, target: Path, out: Path, outtype: str) -> Header:
    """`drafter` through llama.cpp's converter."""
    assert CONVERTER.is_dir(), "llama.cpp's converter is not there: run ci/llama_cpp_converter.sh, as make test-gguf does"
    driver = Path(__file__).parent / "converter_driver.py"
    command = [sys.executable, driver, CONVERTER, "gpt-2", drafter, "--target-model-dir", target]
    done = subprocess.run(
        [str(part) for part in [*command, "--outtype", outtype, "--outfile", out]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return read_header(out)


def assert_same_tensors(ours: Header, theirs: Header) -> None:
    mine, other = ours.path.read_bytes(), theirs.path.read_bytes()
    assert set(ours.tensors) == set(theirs.tensors)
    for name, place in ours.tensors.items():
        twin = theirs.tensors[name]
        assert (place.kind, place.shape) == (twin.kind, twin.shape), name
        data = mine[place.begin : place.begin + place.num_bytes]
        assert data == other[twin.begin : twin.begin + twin.num_bytes], name
        assert any(data), f"{name} is all zeros, which proves nothing"


def assert_same_keys(ours: Header, theirs: Header) -> None:
    assert set(ours.keys) - set(theirs.keys) <= OURS_ALONE
    assert set(theirs.keys) - set(ours.keys) <= THEIRS_ALONE
    shared = (set(ours.keys) & set(theirs.keys)) - DIFFERENT_ON_PURPOSE
    assert {name: ours.keys[name] for name in shared} == {name: theirs.keys[name] for name in shared}


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_the_embedded_drafter_has_the_tensors_of_llama_cpps_converter(outtype: str, tmp_path: Path) -> None:
    pair = tiny_pair()
    export(pair.drafter, tmp_path / "ours.gguf", tokenizer_from=pair.target, outtype=outtype)
    theirs = convert(pair.drafter, pair.target, tmp_path / "theirs.gguf", outtype)
    ours = read_header(tmp_path / "ours.gguf")
    assert len(ours.tensors) == 36
    assert_same_tensors(ours, theirs)
    assert_same_keys(ours, theirs)


@pytest.mark.parametrize(("changes", "own"), CASES.values(), ids=CASES)
def test_every_option_is_told_as_llama_cpps_converter_tells_it(
    changes: dict[str, Any], own: tuple[str, ...], tmp_path: Path
) -> None:
    target = write_folder(tmp_path / "target")
    drafter = saved(toy_drafter(own=own, **changes), tmp_path / "drafter")
    export(drafter, tmp_path / "ours.gguf", tokenizer_from=target, outtype="f16")
    theirs = convert(drafter, target, tmp_path / "theirs.gguf", "f16")
    ours = read_header(tmp_path / "ours.gguf")
    assert_same_tensors(ours, theirs)
    assert_same_keys(ours, theirs)


def test_a_target_whose_positions_have_axes_is_told_as_llama_cpps_converter_tells_it(tmp_path: Path) -> None:
    target = write_folder(tmp_path / "target", rope_parameters={"rope_theta": 1e4, "mrope_section": [2, 1, 1]})
    drafter = saved(toy_drafter().to(torch.bfloat16), tmp_path / "drafter")
    export(drafter, tmp_path / "ours.gguf", tokenizer_from=target, outtype="bf16")
    ours, theirs = read_header(tmp_path / "ours.gguf"), convert(drafter, target, tmp_path / "theirs.gguf", "bf16")
    assert ours.value("dflash.rope.dimension_sections") == [4, 0, 0, 0]
    assert_same_tensors(ours, theirs)
    assert_same_keys(ours, theirs)


def test_a_weight_changed_by_one_bit_is_seen(tmp_path: Path) -> None:
    """The comparison itself: it must not pass for other reasons than equality."""
    target, drafter = write_folder(tmp_path / "target"), saved(toy_drafter(), tmp_path / "drafter")
    export(drafter, tmp_path / "before.gguf", tokenizer_from=target, outtype="f32")
    weights = load_file(drafter / "model.safetensors")
    weights["layers.1.mlp_conv.base_kernel"].view(torch.int32)[1, 0, 3] ^= 1
    save_file(weights, drafter / "model.safetensors")
    export(drafter, tmp_path / "after.gguf", tokenizer_from=target, outtype="f32")
    with pytest.raises(AssertionError, match="blk.1.ffn_conv_base"):
        assert_same_tensors(read_header(tmp_path / "before.gguf"), read_header(tmp_path / "after.gguf"))
