"""What is decided, and what is refused, before an engine starts: each a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash2_core import load_drafter, save_drafter
from dflash2_core.assets import tiny_pair
from tests.vllm.engines import DRAFTED, EXACT, VllmProcess
from tests.vllm.spoiling import spoilt

TARGET, DRAFTER = tiny_pair().target, tiny_pair().drafter
Configure = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def configure(drafted: VllmProcess) -> Configure:
    """(options of --speculative-config, other arguments) -> what the config came to."""

    def configured(model: Path = TARGET, /, *, speculative: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        options = {key: value for key, value in (DRAFTED | speculative).items() if value is not None}
        answer: dict[str, Any] = drafted.ask("configure", model=str(model), speculative_config=options, **EXACT | arguments)
        return answer

    return configured


def test_drafts_come_from_the_checkpoint_and_are_sampled(configure: Configure) -> None:
    found = configure(speculative={})
    assert found["spec"]["num_speculative_tokens"] == 7
    assert found["spec"]["draft_sample_method"] == "probabilistic"
    assert any("7 drafts a block, from the drafter's block size 8" in line for line in found["said"])
    assert any("draft_sample_method was left out: probabilistic" in line for line in found["said"])


def test_what_is_said_is_kept(configure: Configure) -> None:
    found = configure(speculative={"num_speculative_tokens": 3, "draft_sample_method": "greedy"})
    assert found["spec"]["num_speculative_tokens"] == 3
    assert found["spec"]["draft_sample_method"] == "greedy"
    assert found["said"] == []


def test_a_drafter_without_a_method_is_recognised(configure: Configure) -> None:
    found = configure(speculative={"method": None})
    assert found["spec"]["method"] == "dflash"


def test_no_drafts_are_no_drafting_and_that_is_said(configure: Configure) -> None:
    found = configure(speculative={"num_speculative_tokens": 0})
    assert found["refused"] is None
    assert found["spec"] is None
    assert found["said"] == ["dflash2: num_speculative_tokens is 0: drafting is off, the target decodes plainly"]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "too many drafts": ({"num_speculative_tokens": 8}, {}, "8 drafts a block: a drafter of block size 8 makes 7"),
    "changing lengths": (
        {"num_speculative_tokens_per_batch_size": [[1, 4, 7], [5, 256, 3]]},
        {},
        "draft lengths that change with the batch",
    ),
    "drafts kept without consent": (
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.0},
        {},
        "rejection_sample_method 'synthetic', which keeps drafts without the target's consent",
    ),
    "two devices": ({}, {"tensor_parallel_size": 2}, "DFlash 2 with tensor_parallel_size 2: dflash2 drafts on one device only"),
    "two stages": ({}, {"pipeline_parallel_size": 2}, "DFlash 2 with pipeline_parallel_size 2"),
    "no room in a batch": ({}, {"max_num_batched_tokens": 7}, "does not have enough slots"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_that_cannot_be_right_is_refused(case: str, configure: Configure) -> None:
    speculative, arguments, sentence = REFUSED[case]
    refused = configure(speculative=speculative, **arguments)["refused"]
    assert refused is not None
    assert sentence in refused


def without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.pop(name)  # type: ignore[func-returns-value]


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no rank": ({"dflash_config": {"selector_rank": None}}, "selector_rank missing: DFlash 2 needs"),
    "no convolution size": ({"dflash_config": {"conv_kernel_size": None}}, "conv_kernel_size missing: DFlash 2 needs"),
    "no mask token": ({"dflash_config": {"mask_token_id": None}}, "mask_token_id is missing"),
    "no taps": ({"dflash_config": {"target_layer_ids": None}}, "target_layer_ids is missing"),
    "no codebook": ({"tensors": without("candidate_selector.successor_codebook")}, "candidate_selector.successor_codebook"),
    "no convolution": ({"tensors": without("layers.1.mlp_conv.base_kernel")}, "layers.1.mlp_conv.base_kernel"),
    "an unknown key": ({"dflash_config": {"tree_width": 4}}, "tree_width"),
    "a mask that ends texts": ({"dflash_config": {"mask_token_id": 0}}, "mask_token_id and eos_token_id are both 0"),
    "a mask past the vocabulary": ({"dflash_config": {"mask_token_id": 1024}}, "1024"),
    "a tap past the target": ({"dflash_config": {"target_layer_ids": [0, 1, 7]}, "num_target_layers": None}, "it taps layer 7"),
    "a tap on the last layer": (
        {"dflash_config": {"target_layer_ids": [0, 1, 3]}, "num_target_layers": None},
        "it taps layer 3, the target's last",
    ),
    "another target's depth": ({"num_target_layers": 5}, "trained on a target of 5 layers, this one has 4"),
    "windows of some layers": ({"layer_types": ["sliding_attention", "full_attention"]}, "different windows (96, full)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_drafter_that_is_broken_or_foreign_is_refused(case: str, configure: Configure, tmp_path: Path) -> None:
    changes, sentence = BROKEN[case]
    drafter = spoilt(DRAFTER, tmp_path / "drafter", **changes)
    refused = configure(speculative={"model": str(drafter)})["refused"]
    assert refused is not None
    assert sentence in refused


FOREIGN = {
    "vocabulary": ({"vocab_size": 1000}, "its vocabulary has 1024 ids, the target's 1000"),
    "hidden size": ({"hidden_size": 256}, "it was trained on features of width 288, the target's are 256"),
    "depth": ({"num_hidden_layers": 9, "layer_types": ["full_attention"] * 9}, "of 4 layers, this one has 9"),
    "padding": ({"pad_token_id": 2}, "its mask token 2 is the target's padding token"),
}


@pytest.mark.parametrize("fact", FOREIGN)
def test_another_target_than_the_drafters_is_refused(fact: str, configure: Configure, tmp_path: Path) -> None:
    changes, sentence = FOREIGN[fact]
    refused = configure(spoilt(TARGET, tmp_path / "target", **changes), speculative={})["refused"]
    assert sentence in refused


def test_where_vllm_runs_dflash2_itself_the_plugin_stays_out_and_says_so(configure: Configure) -> None:
    """Its V2 runner, asked for on a machine that has none: vLLM's to refuse, and not the plugin's to complete."""
    found = configure(speculative={}, v2=True)
    assert [line for line in found["said"] if "stays out: this vLLM runs DFlash 2 by itself, on its V2 runner" in line]
    assert not any("drafts a block" in line for line in found["said"])


def test_other_methods_are_left_alone(configure: Configure) -> None:
    ngram = {"method": "ngram", "model": None, "num_speculative_tokens": 4, "prompt_lookup_max": 3}
    found = configure(speculative=ngram)
    assert found["refused"] is None
    assert found["said"] == []
    assert found["spec"]["draft_sample_method"] == "greedy"


SCALES = {"output_multiplier": 0.5, "final_logit_softcapping": 20.0, "input_embedding_scale": 1.5}


def test_vllms_config_says_what_the_core_read(configure: Configure, tmp_path: Path) -> None:
    """Scales beside dflash_config, where vLLM does not look, and windows that are lifted where layer types say sliding."""
    drafter = spoilt(DRAFTER, tmp_path / "drafter", use_sliding_window=False, **SCALES)
    spec = configure(speculative={"model": str(drafter)})["spec"]
    assert spec["layer_types"] == ["full_attention"] * 2
    assert spec["sliding_window"] is None
    assert spec["is_causal"] is False
    assert {name: spec["dflash_config"][name] for name in SCALES} == SCALES
    assert spec["dflash_config"]["target_layer_ids"] == [0, 1, 2]


def test_speculators_layout_is_taken_and_its_scales_are_kept(configure: Configure, tmp_path: Path) -> None:
    """vLLM itself loses them; `test_scales.py` has an engine draft with them."""
    save_drafter(load_drafter(DRAFTER, dtype=torch.float32), tmp_path / "plain", layout="speculators")
    spec = configure(speculative={"model": str(tmp_path / "plain")})["spec"]
    assert (spec["num_speculative_tokens"], spec["sliding_window"], spec["is_causal"]) == (7, 96, False)
    scaled = spoilt(tmp_path / "plain", tmp_path / "scaled", **SCALES)
    spec = configure(speculative={"model": str(scaled)})["spec"]
    assert {name: spec["dflash_config"][name] for name in SCALES} == SCALES
