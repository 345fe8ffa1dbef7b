"""`dflash2 convert` to a GGUF and back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dflash2_core import load_drafter
from dflash2_core.conversion import convert, exact_outtype, open_source
from dflash2_core.errors import CompatibilityError
from gguf_export import export, restored
from tests.core.cli.test_generate import dflash2
from tests.gguf.toys import block_logits, saved, toy_drafter, write_target

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@pytest.mark.parametrize("outtype", DTYPES)
@pytest.mark.parametrize("layout", ["zlab", "speculators"])
def test_there_and_back_is_the_same_bytes_and_the_same_logits(outtype: str, layout: str, target: Path, tmp_path: Path) -> None:
    source = saved(toy_drafter(layer_windows=(12, 12)).to(DTYPES[outtype]), tmp_path / "source", layout=layout)
    there = dflash2("convert", source, tmp_path / "d.gguf", "--to", "gguf", "--target", target)
    assert (there.returncode, there.stderr) == (0, "")
    assert "note" not in there.stdout
    assert outtype.upper() in there.stdout
    back = dflash2("convert", tmp_path / "d.gguf", tmp_path / "back", "--to", layout)
    assert back.returncode == 0, back.stderr
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes(), name
    before, after = (load_drafter(folder, dtype=torch.float32) for folder in (source, tmp_path / "back"))
    assert torch.equal(block_logits(after, committed=21), block_logits(before, committed=21))


def test_a_norm_that_needs_float32_stays_in_float32(target: Path, tmp_path: Path) -> None:
    mixed = toy_drafter().to(torch.bfloat16)
    mixed.norm.weight.data = mixed.norm.weight.data.float() + 1e-6
    source = saved(mixed, tmp_path / "source")
    export(source, tmp_path / "d.gguf", tokenizer_from=target, outtype=exact_outtype(open_source(source)))
    back = convert(restored(tmp_path / "d.gguf"), tmp_path / "back", layout="zlab")
    weights, expected = load_file(back.path / "model.safetensors"), load_file(source / "model.safetensors")
    assert {name for name, tensor in weights.items() if tensor.dtype == torch.float32} == {"norm.weight"}
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_quantised_weights_come_back_as_float32_and_it_is_told_what_that_means(target: Path, tmp_path: Path) -> None:
    wide: dict[str, Any] = {"hidden_size": 32, "target_hidden_size": 32, "intermediate_size": 32, "selector_rank": 32}
    source = saved(toy_drafter(**wide), tmp_path / "source")
    wide_target = target.parent / "wide.gguf"
    write_target(wide_target, embedding_length=32)
    export(source, tmp_path / "d.gguf", tokenizer_from=wide_target, outtype="q8_0")
    done = convert(restored(tmp_path / "d.gguf"), tmp_path / "back", layout="zlab")
    assert done.notes[0].startswith("quantised weights (Q8_0 ")
    assert "stays lost" in done.notes[0]
    original, back = load_drafter(source), load_drafter(done.path)
    assert back.fc.weight.dtype == torch.float32
    error = (back.fc.weight - original.fc.weight).abs().max()
    assert 0 < error < original.fc.weight.abs().max() / 127
    assert torch.equal(back.norm.weight, original.norm.weight)


def test_numbers_that_a_gguf_rounds_are_named(target: Path, tmp_path: Path) -> None:
    source = saved(toy_drafter(output_multiplier=0.19611613513818404), tmp_path / "source")
    done = dflash2("convert", source, tmp_path / "d.gguf", "--to", "gguf", "--target", target)
    assert done.returncode == 0
    assert "note: output_multiplier was 0.19611613513818404 and is 0.19611613" in done.stdout


def test_what_a_gguf_cannot_say_is_refused_by_name(target: Path, tmp_path: Path) -> None:
    source = saved(toy_drafter(layer_windows=(12, None), layer_causal=(True, False)), tmp_path / "source")
    done = dflash2("convert", source, tmp_path / "d.gguf", "--to", "gguf", "--target", target)
    assert done.returncode == 2
    assert "its layers differ in causality" in done.stderr
    assert not (tmp_path / "d.gguf").exists()


def test_a_gguf_is_not_made_of_a_gguf(drafter: Path, target: Path, tmp_path: Path) -> None:
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    done = dflash2("convert", tmp_path / "d.gguf", tmp_path / "e.gguf", "--to", "gguf", "--target", target)
    assert done.returncode == 2
    assert "llama-quantize" in done.stderr


def test_matrices_of_several_types_are_held_by_float32_and_float64_by_none(tmp_path: Path) -> None:
    mixed = toy_drafter().to(torch.bfloat16)
    mixed.fc.weight.data = mixed.fc.weight.data.half()
    assert exact_outtype(open_source(saved(mixed, tmp_path / "mixed"))) == "f32"
    with pytest.raises(CompatibilityError, match="float64"):
        exact_outtype(open_source(saved(toy_drafter().double(), tmp_path / "double")))


def test_what_the_gguf_says_of_licence_and_base_model_becomes_the_card(drafter: Path, target: Path, tmp_path: Path) -> None:
    (drafter / "README.md").write_text("---\nlicense: cc-by-nc-nd-4.0\n---\n")
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    back = convert(restored(tmp_path / "d.gguf"), tmp_path / "back", layout="zlab")
    card = (back.path / "README.md").read_text()
    assert card == "---\nlicense: cc-by-nc-nd-4.0\nbase_model: toy-org/toy-target\n---\n"
    assert open_source(back.path).licence == "cc-by-nc-nd-4.0"
