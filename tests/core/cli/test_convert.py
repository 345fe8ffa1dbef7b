"""`dflash2 convert` as its user meets it."""

import json
from pathlib import Path

import pytest
import torch

from dflash2_core import save_drafter
from dflash2_core.assets import tiny_pair
from dflash2_core.checkpoint import open_checkpoint
from tests.core.cli.test_generate import dflash2
from tests.core.toys import random_drafter


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    save_drafter(random_drafter(layer_windows=(4, 4)), tmp_path / "drafter")
    return tmp_path / "drafter"


def test_the_embedded_drafter_goes_to_speculators_and_back_and_drafts_as_before(tmp_path: Path) -> None:
    pair = tiny_pair()
    there = dflash2("convert", pair.drafter, tmp_path / "there", "--to", "speculators", "--target", pair.target)
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout.strip().endswith("layout speculators, 36 tensors (bfloat16 2,406,848), 4,817,400 bytes")
    back = dflash2("convert", tmp_path / "there", tmp_path / "back", "--to", "zlab")
    assert back.returncode == 0
    assert "note: the target's name" in back.stdout
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (pair.drafter / name).read_bytes()
    written = dflash2("generate", "import os", "--target", pair.target, "--drafter", tmp_path / "there", "--compare", "--json")
    told = json.loads(written.stdout)
    assert told["plain_identical"] is True
    assert told["stats"]["num_accepted"] > 0


def test_a_folder_given_as_the_target_is_named_by_its_place_and_architecture(drafter: Path, tmp_path: Path) -> None:
    target = tiny_pair().target
    for given, expected in ((str(target), [str(target.resolve()), ["Qwen3ForCausalLM"]]), ("some/name", ["some/name", []])):
        out = tmp_path / given.replace("/", "-")
        assert dflash2("convert", drafter, out, "--to", "speculators", "--target", given).returncode == 0
        verifier = json.loads((out / "config.json").read_text())["speculators_config"]["verifier"]
        assert [verifier["name_or_path"], verifier["architectures"]] == expected


def test_json_is_one_object_and_nothing_else(drafter: Path, tmp_path: Path) -> None:
    done = dflash2("convert", drafter, tmp_path / "out", "--to", "zlab", "--dtype", "bfloat16", "--json")
    told = json.loads(done.stdout)
    assert set(told) == {"path", "layout", "num_tensors", "num_bytes", "parameters_by_type", "notes"}
    assert told["notes"] == ["bfloat16 rounds values of 36 tensors"]
    assert told["num_bytes"] == (tmp_path / "out/model.safetensors").stat().st_size
    assert set(open_checkpoint(tmp_path / "out").dtypes.values()) == {torch.bfloat16}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--to", "gguf"), "give --target"),
        (("--to", "zlab", "--dtype", "int8"), "dtype is 'int8': expected keep, float64, float32, float16, bfloat16"),
        (("--to", "speculators"), "output_multiplier"),
    ],
    ids=["no tokenizer", "no float type", "what the layout cannot say"],
)
def test_what_cannot_be_done_is_a_sentence_and_exit_code_2(options: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    save_drafter(random_drafter(output_multiplier=0.5), tmp_path / "drafter")
    done = dflash2("convert", tmp_path / "drafter", tmp_path / "out", *options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_no_drafter_is_told_as_everywhere(tmp_path: Path) -> None:
    done = dflash2("convert", tiny_pair().target, tmp_path / "out", "--to", "zlab")
    assert done.returncode == 2
    assert "the config of another model" in done.stderr
