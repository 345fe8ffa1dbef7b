"""`dflash2 recipe`: an engine's own words for a pair, each held against what that engine reads."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dflash2_core import save_drafter
from dflash2_core.assets import tiny_pair
from dflash2_core.deployment import RECIPES
from dflash2_core.engines import EngineOptions, find_engine
from tests.core.cli.test_generate import dflash2
from tests.core.toys import random_drafter

# Fields of tensorrt_llm.llmapi.DFlashDecodingConfig, as NVIDIA's reference lists them:
# https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/DFlashDecodingConfig.html and the same page of 1.4.0rc1,
# which has these and more.
TENSORRT_LLM_KEYS = {
    *("max_draft_len", "max_total_draft_tokens", "speculative_model", "max_concurrency", "draft_len_schedule", "load_format"),
    *("acceptance_rate_window_size", "acceptance_rate_threshold", "use_rejection_sampling", "allow_advanced_sampling"),
    *("advanced_sampling_mode", "enable_penalty", "mask_token_id", "target_layer_ids", "decoding_type", "attention_backend"),
}
# Fields of oMLX's ModelSettings: omlx/model_settings.py as its pull request 2840 (merged 2026-08-19) left it.
OMLX_KEYS = {
    *("dflash_enabled", "dflash_draft_model", "dflash_block_size", "dflash_draft_window_size", "dflash_draft_sink_size"),
    *("dflash_draft_quant_enabled", "dflash_draft_quant_weight_bits", "dflash_draft_quant_activation_bits"),
    *("dflash_draft_quant_group_size", "dflash_max_ctx", "dflash_in_memory_cache", "dflash_in_memory_cache_max_entries"),
    *(
        "dflash_in_memory_cache_max_bytes",
        "dflash_ssd_cache",
        "dflash_ssd_cache_max_bytes",
        "dflash_verify_mode",
        "mtp_enabled",
    ),
}
OLLAMA_INSTRUCTIONS = {"FROM", "DRAFT", "PARAMETER"}
"""Of those that ollama's parser/parser.go takes, the ones of a pair."""


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """Of block 8, in bfloat16, in a folder whose name has a space."""
    folder = tmp_path / "my drafter"
    save_drafter(random_drafter(layer_windows=(4, 4)).to(torch.bfloat16), folder)
    return folder


@pytest.fixture(autouse=True)
def no_engine_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes of what is installed nowhere, whatever this machine has."""
    for variable in ("DFLASH2_VLLM_PYTHON", "DFLASH2_SGLANG_PYTHON", "DFLASH2_LLAMA_CPP_SERVER"):
        monkeypatch.setenv(variable, "/nowhere/program")


def told(engine: str, drafter: Path, target: str = "org/target") -> dict[str, Any]:
    done = dflash2("recipe", engine, "--target", target, "--drafter", drafter, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_vllm_counts_drafts(drafter: Path) -> None:
    argv = shlex.split(told("vllm", drafter)["text"])
    assert argv[:3] == ["vllm", "serve", "org/target"]
    asked = json.loads(option(argv, "--speculative-config"))
    assert asked == {"method": "dflash", "model": str(drafter), "num_speculative_tokens": 7}


def test_a_target_that_is_here_is_called_by_its_place_in_full(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(drafter.parent)
    (drafter.parent / "target").mkdir()
    for engine in ("vllm", "sglang", "llama-cpp", "ollama", "splash"):  # the others' files name no target, or its name alone
        assert str(drafter.parent / "target") in told(engine, Path("my drafter"), "target")["text"]


def test_an_engine_that_is_misspelt_is_guessed(drafter: Path) -> None:
    done = dflash2("recipe", "vlm", "--target", "org/target", "--drafter", drafter)
    assert done.returncode == 2
    assert "no recipe for 'vlm' (did you mean 'vllm'?): expected one of" in done.stderr


def test_sglang_counts_rows(drafter: Path) -> None:
    argv = shlex.split(told("sglang", drafter)["text"])
    assert option(argv, "--speculative-algorithm") == "DFLASH"
    assert option(argv, "--speculative-num-draft-tokens") == "8"
    assert option(argv, "--speculative-draft-model-path") == str(drafter)


def test_llama_cpp_counts_drafts_and_exports_first(drafter: Path) -> None:
    export, serve = (shlex.split(line) for line in told("llama-cpp", drafter, "target.gguf")["text"].splitlines())
    assert export[:3] == ["dflash2", "export-gguf", str(drafter)]
    assert option(export, "--tokenizer-from") == option(serve, "-m") == "target.gguf"
    assert option(export, "--output") == option(serve, "-md")
    assert option(serve, "--spec-draft-n-max") == "7"
    assert option(serve, "--spec-type") == "draft-dflash"


def test_tensorrt_llm_gets_a_yaml_of_keys_that_its_class_has(drafter: Path) -> None:
    found = told("tensorrt-llm", drafter)
    config = yaml.safe_load(found["text"])["speculative_config"]
    assert set(config) <= TENSORRT_LLM_KEYS
    assert config == {
        "decoding_type": "DFlash",
        "max_draft_len": 7,
        "speculative_model": str(drafter),
        "mask_token_id": 36,
    }


def test_ollama_gets_a_modelfile_that_drafts(drafter: Path) -> None:
    lines = [line.split(" ", 1) for line in told("ollama", drafter)["text"].splitlines()]
    assert {name for name, _ in lines} == OLLAMA_INSTRUCTIONS
    assert lines == [["FROM", "org/target"], ["DRAFT", str(drafter)], ["PARAMETER", "draft_num_predict 7"]]


def test_omlx_gets_settings_of_keys_that_it_reads(drafter: Path) -> None:
    document = json.loads(told("omlx", drafter)["text"])
    assert document["version"] == 1
    settings = document["models"]["target"]
    assert set(settings) <= OMLX_KEYS
    assert (settings["dflash_block_size"], settings["dflash_draft_sink_size"]) == (8, 0)
    assert settings["dflash_enabled"] is not settings["mtp_enabled"]


def test_splash_gets_the_drafters_folder_and_no_count(drafter: Path) -> None:
    argv = shlex.split(told("splash", drafter)["text"])
    assert argv == ["splash", "serve", "--model", "org/target", "--draft-model", str(drafter)]


@pytest.mark.parametrize("engine", RECIPES)
def test_every_recipe_says_its_count_its_source_and_that_it_was_only_read_where_it_was(engine: str, drafter: Path) -> None:
    found = told(engine, drafter)
    assert found["engine"] == engine
    assert found["counts"].startswith("block 8 = 7 drafts: ")
    assert found["checked"]
    assert found["run"] is False  # nothing is installed here
    assert found["notes"]
    assert (found["file"] is not None) == (found["kind"] == "file")


def test_the_recipe_alone_is_on_standard_output_and_what_is_known_of_it_on_the_other(drafter: Path) -> None:
    done = dflash2("recipe", "ollama", "--target", "t", "--drafter", drafter)
    assert done.stdout.splitlines()[-1] == "PARAMETER draft_num_predict 7"
    for words in ("the file Modelfile", "only read, not run by this project", "block 8 = 7 drafts"):
        assert words in done.stderr


def test_where_the_engine_is_installed_the_recipe_is_its_adapters_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"vllm": "0.32.0", "dflash2": "0.1.0", "plugin": true}\'\n')
    python.chmod(0o755)
    monkeypatch.setenv("DFLASH2_VLLM_PYTHON", str(python))
    pair = tiny_pair()
    found = told("vllm", pair.drafter, str(pair.target))
    assert found["text"] == str(find_engine("vllm").command(pair.target, pair.drafter, EngineOptions(port=8080)))
    assert found["run"] is True
    done = dflash2("recipe", "vllm", "--target", "org/target", "--drafter", pair.drafter)
    assert (done.returncode, "is not here" in done.stderr) == (2, True)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "ollama", "omlx", "splash"])
def test_a_layout_that_the_engine_does_not_read_is_refused_with_the_conversion(engine: str, tmp_path: Path) -> None:
    save_drafter(random_drafter(), tmp_path / "drafter", layout="speculators")
    done = dflash2("recipe", engine, "--target", "t", "--drafter", tmp_path / "drafter")
    assert done.returncode == 2
    assert f"dflash2 convert {tmp_path / 'drafter'} OUT --to zlab" in done.stderr


def test_splash_asks_for_bfloat16(tmp_path: Path) -> None:
    save_drafter(random_drafter(), tmp_path / "drafter")
    done = dflash2("recipe", "splash", "--target", "t", "--drafter", tmp_path / "drafter")
    assert done.returncode == 2
    assert "holds weights in float32 and Splash asks for bfloat16" in done.stderr


def test_an_engine_without_a_recipe_is_told_those_that_have_one(drafter: Path) -> None:
    done = dflash2("recipe", "mlc", "--target", "t", "--drafter", drafter)
    assert done.returncode == 2
    assert "there is no recipe for 'mlc': expected one of vllm, sglang, llama-cpp" in done.stderr


def test_a_name_that_would_break_a_file_is_refused(drafter: Path) -> None:
    done = dflash2("recipe", "ollama", "--target", "t\nPARAMETER draft_num_predict 0", "--drafter", drafter)
    assert done.returncode == 2
    assert "printable" in done.stderr
