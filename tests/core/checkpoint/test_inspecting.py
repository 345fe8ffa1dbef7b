"""`dflash2 inspect`: what a checkpoint is, and everything that is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from dflash2_core.checkpoint import write_checkpoint
from dflash2_core.checkpoint.examination import examine, stated_licence
from dflash2_core.cli.inspect import inspect
from dflash2_core.config import DrafterConfig
from dflash2_core.errors import Dflash2Error
from tests.core.toys import drafter_config

Weights = dict[str, Tensor]


def run(*arguments: object) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(inspect)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], terminal_width=200)
    return result.exit_code, result.output


def findings(folder: Path, config: DrafterConfig, weights: Weights) -> list[str]:
    write_checkpoint(config, weights, folder)
    return examine(folder).findings


def test_a_sound_checkpoint_is_described(folder: Path) -> None:
    code, output = run(folder)
    assert code == 0
    for fact in (
        "zlab",
        "DFlash 2",
        "block 8 = 7 drafts",
        "target layers 0, 2, 4 of 6",
        "2, each window 4, not causal",
        "type default, theta 10,000",
        "2 taps, groups of 4",
        "rank 7, 5 candidates",
        "in 36 tensors",
        "f32 100%",
        "no problem found",
    ):
        assert fact in output, fact


def test_json_holds_the_same_facts_and_nothing_else(folder: Path, config: DrafterConfig) -> None:
    code, output = run(folder, "--json")
    told = json.loads(output)
    assert code == 0
    assert told["findings"] == []
    assert (told["version"], told["layout"]) == (2, "zlab")
    assert (told["block_size"], told["num_drafts"]) == (8, 7)
    assert told["target_layer_ids"] == [0, 2, 4]
    assert told["layers"] == [{"window": 4, "causal": False}] * 2
    assert told["num_parameters"] == config.num_parameters
    assert told["parameters_by_dtype"] == {"f32": config.num_parameters}


def test_layers_that_differ_are_told_apart(tmp_path: Path, weights: Weights) -> None:
    mixed = drafter_config(layer_windows=(4, None), layer_causal=(True, False))
    write_checkpoint(mixed, weights, tmp_path)
    _, output = run(tmp_path)
    assert "1 of window 4, causal; 1 of whole context, not causal" in output


def test_the_first_version_has_neither_convolution_nor_selector(tmp_path: Path, weights: Weights) -> None:
    first = drafter_config(version=1)
    write_checkpoint(first, {n: t for n, t in weights.items() if "conv" not in n and "selector" not in n}, tmp_path)
    code, output = run(tmp_path)
    assert code == 0
    assert "DFlash 1" in output


def test_every_problem_is_found_and_the_exit_code_says_so(folder: Path, weights: Weights) -> None:
    del weights["fc.weight"]
    weights["norm.weight"][2] = float("nan")
    save_file(weights | {"surprise": torch.zeros(1), "hidden_norm.weight": torch.zeros(3)}, folder / "model.safetensors")
    (folder / "mask_embedding.pt").write_bytes(b"x")
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(text | {"oddity": 1, "mlp_bias": True}))
    code, output = run(folder, "--json")
    told = json.loads(output)["findings"]
    assert code == 1
    for part in (
        "oddity",
        "mlp_bias",
        "mask_embedding.pt",
        "fc.weight",
        "surprise",
        "hidden_norm.weight",
        "norm.weight holds 1",
    ):
        assert any(part in finding for finding in told), part


def test_problems_are_found_in_a_checkpoint_whose_config_cannot_be_read(folder: Path) -> None:
    text = json.loads((folder / "config.json").read_text())
    del text["head_dim"]
    (folder / "config.json").write_text(json.dumps(text))
    (folder / "model.safetensors").write_bytes(b"cut off")
    code, output = run(folder)
    assert code == 1
    assert "could not be read" in output
    assert "head_dim is missing" in output
    assert "no sound safetensors file" in output


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_that_are_no_finite_numbers_are_counted(
    tmp_path: Path, config: DrafterConfig, weights: Weights, value: float, dtype: torch.dtype
) -> None:
    """T-DTYPE, at the door."""
    stored = {name: tensor.to(dtype) for name, tensor in weights.items()}
    stored["layers.1.mlp.up_proj.weight"][3, 4:7] = value
    assert findings(tmp_path, config, stored) == ["layers.1.mlp.up_proj.weight holds 3 values that are no finite numbers"]


def test_weights_that_float16_cannot_hold_are_told(tmp_path: Path, config: DrafterConfig, weights: Weights) -> None:
    weights["fc.weight"][0, 0] = 1e5
    assert findings(tmp_path, config, weights) == ["fc.weight holds 1e+05: above what float16 can hold"]


def test_an_untrained_selector_and_untrained_convolutions_are_told(
    tmp_path: Path, config: DrafterConfig, weights: Weights
) -> None:
    for name, tensor in weights.items():
        if "kernel_projection" in name or "successor" in name:
            tensor.zero_()
    told = findings(tmp_path, config, weights)
    assert len(told) == 2
    assert any("successor_codebook is all zeros: the selector changes nothing" in finding for finding in told)
    assert any("the dynamic kernels of 4 convolutions are all zeros" in finding for finding in told)


def test_a_part_that_is_all_zeros_is_told(tmp_path: Path, config: DrafterConfig, weights: Weights) -> None:
    weights["layers.0.self_attn.o_proj.weight"].zero_()
    assert findings(tmp_path, config, weights) == [
        "layers.0.self_attn.o_proj.weight is all zeros: this part of the drafter does nothing"
    ]


def test_what_a_drafter_has_of_its_own_is_told(tmp_path: Path, config: DrafterConfig, weights: Weights) -> None:
    write_checkpoint(config, weights | {"mask_embedding": torch.ones(config.hidden_size)}, tmp_path)
    assert examine(tmp_path).own_tensors == ["mask_embedding"]


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n# A drafter\n", "apache-2.0"),
        ('---\ntags: [x]\nlicense: "mit"\n---\n', "mit"),
        ("# A drafter\nlicense: mit\n", None),
        ("---\nlanguage: en\n---\n", None),
        ("---\nlicense: mit\n", None),
        ("", None),
        ("\xff\xfe", None),
    ],
)
def test_the_licence_is_told_where_the_card_states_it(tmp_path: Path, card: str, licence: str | None) -> None:
    (tmp_path / "README.md").write_text(card, encoding="latin-1")
    assert stated_licence(tmp_path) == licence


def test_a_folder_without_a_card_states_no_licence(tmp_path: Path) -> None:
    assert stated_licence(tmp_path) is None


def not_a_drafter(tmp_path: Path) -> dict[str, Path]:
    target, gguf, empty = tmp_path / "target", tmp_path / "drafter.gguf", tmp_path / "empty"
    target.mkdir()
    empty.mkdir()
    (target / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 8}))
    gguf.write_bytes(b"GGUF\x03\0\0\0")
    return {"a target": target, "a GGUF": gguf, "nothing": tmp_path / "nowhere", "an empty folder": empty}


@pytest.mark.parametrize("what", ["a target", "a GGUF", "nothing", "an empty folder"])
def test_what_is_no_drafter_ends_with_a_sentence_and_exit_code_2(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dflash2_core import cli

    monkeypatch.setattr("sys.argv", ["dflash2", "inspect", str(not_a_drafter(tmp_path)[what])])
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed: Any = capsys.readouterr()
    assert end.value.code == 2
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("dflash2: ")
    assert "Traceback" not in printed.err


def test_a_folder_that_is_no_drafters_raises_an_error_of_this_project(tmp_path: Path) -> None:
    for path in not_a_drafter(tmp_path).values():
        with pytest.raises(Dflash2Error):
            examine(path)


UNSHOWABLE = ["\ud800x", "evil\x1b[2J", "a\u202eb"]


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize("name", UNSHOWABLE)
def test_foreign_names_reach_the_terminal_escaped(
    folder: Path, name: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a key of the config, in a tensor's name, in a file's name, in the licence."""
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | {name: 1}))
    weights = folder / "model.safetensors"
    raw = weights.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header[name] = header.pop("fc.weight")
    header = json.dumps(header).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    if name.isascii():
        (folder / f"{name}.safetensors").write_bytes(b"x")
        (folder / f"{name}.bin").write_bytes(b"x")
        (folder / "README.md").write_text(f"---\nlicense: {name}\n---\n")
    code, output = run(folder, *options)
    assert code == 1
    assert "is a key this project does not know" in output.replace("\n", " ")
    assert all(character.isprintable() or character == "\n" for character in output)
    output.encode()


@pytest.mark.parametrize("name", UNSHOWABLE)
def test_a_config_that_cannot_be_read_does_not_let_foreign_names_through(folder: Path, name: str) -> None:
    document = json.loads((folder / "config.json").read_text())
    del document["head_dim"]
    (folder / "config.json").write_text(json.dumps(document))
    weights = folder / "model.safetensors"
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    code, output = run(folder)
    assert code == 1
    assert all(character.isprintable() or character == "\n" for character in output)
