"""What llama.cpp cannot run is refused in a sentence, and nothing is written."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash2_core.drafter.model import OWN_EMBEDDING, OWN_MASK
from dflash2_core.errors import CheckpointError, CompatibilityError, ConfigError, Dflash2Error
from gguf_export import OUTTYPES, export
from tests.core.toys import EOS, PAD, VOCABULARY
from tests.gguf.toys import saved, toy_drafter, write_target

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
UNSAYABLE: dict[str, tuple[dict[str, Any], str]] = {
    "mixed causality": (
        {"layer_windows": (12, None), "layer_causal": (True, False)},
        "layers differ in causality (causal, not causal) and a GGUF has one attention.causal",
    ),
    "a window shorter than the block": (
        {"layer_windows": (7, 7)},
        "window of 7 is shorter than its block of 8 and it is not causal",
    ),
    "more candidates than fit": (
        {"selector_top_k": 4},
        "selector_top_k is 4 and hidden_size is 16: .* at least top_k * (top_k + 1) = 20",
    ),
    "rope llama3": ({"rope_parameters": LLAMA3}, "rope is of type llama3, which a dflash GGUF cannot state"),
    "yarn without rounding": ({"rope_parameters": YARN | {"truncate": False}}, "yarn rope has truncate false"),
    "another number of layers": (
        {"num_target_layers": 7},
        "trained on a target of 7 layers, this one has 6",
    ),
    "a tap on the last layer": (
        {"num_target_layers": None, "target_layer_ids": (0, 5)},
        "it taps layer 5, the target's last",
    ),
    "a tap outside": ({"num_target_layers": None, "target_layer_ids": (0, 9)}, "it taps layer 9, the target's layers are 0..5"),
    "another width of features": ({"target_hidden_size": 8}, "trained on features of width 8, the target's are 16"),
}


def refused(drafter: Path, target: Path, sentence: str, *, error: type[Dflash2Error], outtype: str = "f32") -> None:
    """The export raises with `sentence` (`.*` between its parts) and leaves the folder as it was."""
    out = drafter.parent / "out"
    out.mkdir()
    (out / "kept.gguf").write_bytes(b"")
    with pytest.raises(error) as raised:
        export(drafter, out / "d.gguf", tokenizer_from=target, outtype=outtype)
    told = str(raised.value)
    for part in sentence.split(" .* "):
        assert part in told, told
    assert [file.name for file in out.iterdir()] == ["kept.gguf"]


@pytest.mark.parametrize(("changes", "sentence"), UNSAYABLE.values(), ids=UNSAYABLE)
def test_a_drafter_that_llama_cpp_would_run_as_another_is_refused(
    changes: dict[str, Any], sentence: str, tmp_path: Path, target: Path
) -> None:
    refused(saved(toy_drafter(**changes), tmp_path / "drafter"), target, sentence, error=CompatibilityError)


def test_every_reason_is_named_at_once(tmp_path: Path, target: Path) -> None:
    changes = {"layer_windows": (12, None), "layer_causal": (True, False), "selector_top_k": 4, "rope_parameters": LLAMA3}
    folder = saved(toy_drafter(**changes), tmp_path / "drafter")
    refused(folder, target, "llama3 .* differ in causality .* selector_top_k is 4", error=CompatibilityError)


@pytest.mark.parametrize(
    ("section", "key", "value", "sentence"),
    [
        ("dflash_config", "target_layer_ids", None, "target_layer_ids is missing"),
        ("dflash_config", "target_layer_ids", [], "expected 1 to 4096 layers"),
        ("dflash_config", "mask_token_id", None, "mask_token_id is missing"),
        ("dflash_config", "mask_token_id", VOCABULARY, f"mask_token_id is {VOCABULARY} but vocab_size is {VOCABULARY}"),
        ("dflash_config", "mask_token_id", -1, "mask_token_id"),
        ("dflash_config", "mask_token_id", EOS, "mask_token_id and eos_token_id are both"),
        ("dflash_config", "block_size", None, "block_size is missing"),
        ("dflash_config", "selector_rank", None, "selector_rank missing"),
        ("dflash_config", "projector_type", "domino", "projector_type"),
        (None, "sliding_window", None, "sliding_window (or dflash_config.swa_window_size) is missing although layers slide"),
        (None, "use_sliding_window", None, "use_sliding_window is missing although the config speaks of a sliding window"),
        (None, "layer_types", ["sliding_attention"], "layer_types has 1 entries but num_hidden_layers is 2"),
        (None, "surprise", 1, "surprise is a key this project does not know"),
    ],
)
def test_a_config_that_leaves_a_question_open_is_refused(
    section: str | None, key: str, value: Any, sentence: str, drafter: Path, target: Path
) -> None:
    config = json.loads((drafter / "config.json").read_text())
    (config[section] if section else config)[key] = value
    (drafter / "config.json").write_text(json.dumps(config))
    refused(drafter, target, sentence, error=ConfigError)


def change_weights(drafter: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(drafter / "model.safetensors")
    change(weights)
    save_file(weights, drafter / "model.safetensors")


def test_a_missing_tensor_is_refused_by_name(drafter: Path, target: Path) -> None:
    change_weights(drafter, lambda weights: weights.pop("layers.1.mlp_conv.base_kernel"))
    refused(drafter, target, "1 of 36 tensors missing: layers.1.mlp_conv.base_kernel", error=CheckpointError)


def test_an_unknown_tensor_is_refused_by_name(drafter: Path, target: Path) -> None:
    change_weights(drafter, lambda weights: weights.update({"layers.0.self_attn.q_proj.bias": torch.zeros(4)}))
    refused(drafter, target, "the drafter's layers have no biases: layers.0.self_attn.q_proj.bias", error=CheckpointError)


def test_a_tensor_of_another_shape_is_refused(drafter: Path, target: Path) -> None:
    change_weights(drafter, lambda weights: weights.update({"fc.weight": torch.zeros(16, 32)}))
    refused(drafter, target, "fc.weight has shape [16, 32] .* the config asks for [16, 48]", error=CheckpointError)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
@pytest.mark.parametrize("name", ["layers.1.self_attn.k_norm.weight", "candidate_selector.successor_codebook"])
def test_weights_that_are_not_finite_are_refused(value: float, outtype: str, name: str, drafter: Path, target: Path) -> None:
    change_weights(drafter, lambda weights: weights[name].reshape(-1)[3:5].fill_(value))
    sentence = f"{name} holds 2 values that are no finite numbers"
    refused(drafter, target, sentence, error=CompatibilityError, outtype=outtype)


@pytest.mark.parametrize("outtype", sorted(set(OUTTYPES) - {"f32", "bf16"}))
def test_weights_that_the_type_cannot_hold_are_refused(outtype: str, drafter: Path, target: Path) -> None:
    change_weights(drafter, lambda weights: weights["fc.weight"][0, :1].fill_(1e5))
    sentence = "fc.weight holds 1e+05, above what F16 can hold: choose the outtype bf16 or f32"
    refused(drafter, target, sentence, error=CompatibilityError, outtype=outtype)


def test_weights_beyond_float32_are_refused(tmp_path: Path, target: Path) -> None:
    folder = saved(toy_drafter().double(), tmp_path / "drafter")
    change_weights(folder, lambda weights: weights["fc.weight"][0, :1].fill_(1e39))
    refused(folder, target, "fc.weight holds 1e+39, above what F32 can hold", error=CompatibilityError)


def test_a_norm_that_float16_could_not_hold_is_no_reason_for_refusal(drafter: Path, target: Path, tmp_path: Path) -> None:
    change_weights(drafter, lambda weights: weights["norm.weight"][:1].fill_(1e5))
    done = export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f16")
    assert done.parameters_by_type["F32"] > 0


def test_an_embedding_of_its_own_without_a_head_is_refused(tmp_path: Path, target: Path) -> None:
    folder = saved(toy_drafter(own=[OWN_EMBEDDING]), tmp_path / "drafter")
    refused(folder, target, "llama.cpp would take the embedding for the head", error=CompatibilityError)


def test_a_mask_row_of_its_own_without_an_embedding_is_refused(tmp_path: Path, target: Path) -> None:
    folder = saved(toy_drafter(own=[OWN_MASK]), tmp_path / "drafter")
    refused(folder, target, "it has a mask row of its own (mask_embedding)", error=CompatibilityError)


def test_another_vocabulary_than_the_tokenizers_is_refused(tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / "wide.gguf", vocabulary=40)
    refused(drafter, target, "its vocabulary has 37 ids, the target's 40", error=CompatibilityError)


def test_a_mask_that_is_the_targets_pad_is_refused(tmp_path: Path, target: Path) -> None:
    folder = saved(toy_drafter(mask_token_id=PAD, pad_token_id=None), tmp_path / "drafter")
    refused(folder, target, f"its mask token {PAD} is the target's padding token", error=CompatibilityError)


def test_another_width_than_the_targets_is_refused_with_tables_of_its_own_too(tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / "wide.gguf", embedding_length=32)
    folder = saved(toy_drafter(own=[OWN_EMBEDDING, "lm_head.weight"], target_hidden_size=32), tmp_path / "own" / "drafter")
    refused(folder, target, "its hidden_size is 16 and the target's 32: llama.cpp takes one width", error=CompatibilityError)


@pytest.mark.parametrize("architecture", ["qwen2", "dflash", "clip"])
def test_a_target_that_llama_cpp_cannot_tap_is_refused(architecture: str, tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / "other.gguf", architecture=architecture)
    refused(drafter, target, f"architecture '{architecture}', whose layers llama.cpp cannot tap", error=CompatibilityError)


def test_a_type_that_is_none_is_refused(drafter: Path, target: Path) -> None:
    refused(drafter, target, "outtype is 'q4_K_M': expected one of f32, f16", error=CompatibilityError, outtype="q4_K_M")


def test_a_folder_that_is_no_drafter_is_refused(tmp_path: Path, target_folder: Path, target: Path) -> None:
    refused(target_folder, target, "this is the config of another model", error=ConfigError)


@pytest.mark.parametrize("outtype", OUTTYPES)
def test_the_drafter_that_these_tests_spoil_is_sound_otherwise(outtype: str, drafter: Path, target: Path) -> None:
    assert export(drafter, drafter.parent / "d.gguf", tokenizer_from=target, outtype=outtype).num_tensors == 36
