"""What does not go together is a sentence before anything is loaded: in SGLang's own process, and in `dflash2 serve`."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash2_core.assets import tiny_pair
from dflash2_core.engines import EngineOptions
from dflash2_core.errors import Dflash2Error, EngineError
from dflash2_sglang import Sglang
from dflash2_sglang.arguments import MOST_REQUESTS, settle
from dflash2_sglang.pair import check_pair, reach
from tests.engines.spoiling import remove, set_key, spoilt
from tests.sglang.servers import PYTHON, running


def arguments(**changed: Any) -> SimpleNamespace:
    """The fields of SGLang's `ServerArgs` that are read, as they are when speculation is settled."""
    fields: dict[str, Any] = {
        "model_path": str(tiny_pair().target),
        "speculative_algorithm": "DFLASH",
        "speculative_draft_model_path": str(tiny_pair().drafter),
        "speculative_num_draft_tokens": None,
        "speculative_draft_window_size": None,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "attention_backend": "torch_native",
        "decode_attention_backend": None,
        "prefill_attention_backend": None,
        "enable_mixed_chunk": False,
        "enable_dp_attention": False,
        "enable_deterministic_inference": False,
        "max_running_requests": None,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
    }
    return SimpleNamespace(**fields | changed)


def test_what_sglangs_worker_needs_is_settled() -> None:
    settled = arguments()
    settle(settled)
    assert settled.speculative_num_draft_tokens == 8
    assert (settled.speculative_num_steps, settled.speculative_eagle_topk) == (1, 1)
    assert settled.speculative_draft_attention_backend == "torch_native"
    assert settled.max_running_requests == MOST_REQUESTS
    asked = arguments(max_running_requests=5, speculative_num_draft_tokens=4)
    settle(asked)
    assert (asked.max_running_requests, asked.speculative_num_draft_tokens) == (5, 4)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"speculative_num_draft_tokens": 9}, r"is 9: SGLang counts the rows .* 8 means 7 drafts; .* have 8 rows \(7 drafts\)"),
        ({"speculative_num_draft_tokens": 1}, "is 1: .*give 2 to 8"),
        ({"speculative_draft_model_path": None}, "needs a drafter: give --speculative-draft-model-path"),
        ({"tp_size": 2}, "--tp-size is 2"),
        ({"dp_size": 2}, "--dp-size is 2"),
        ({"enable_mixed_chunk": True}, "--enable-mixed-chunk"),
        ({"enable_deterministic_inference": True}, "--enable-deterministic-inference is for .* that a CPU does not have"),
        ({"speculative_draft_window_size": 64}, "--speculative-draft-window-size would replace the drafter's own windows"),
        ({"attention_backend": "intel_amx"}, "start SGLang with --attention-backend torch_native"),
        ({"speculative_draft_model_path": "/nowhere/at-all"}, "/nowhere/at-all is no folder here"),
        ({"speculative_draft_model_path": str(tiny_pair().target)}, "the config of another model"),
    ],
)
def test_arguments_that_do_not_work_are_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"dflash2: .*{sentence}"):
        settle(arguments(**changed))


@pytest.mark.parametrize(
    "option", ["speculative_accept_threshold_single", "speculative_accept_threshold_acc", "SGLANG_SIMULATE_ACC_LEN"]
)
def test_switches_that_would_not_be_lossless_are_warned_about(
    option: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if option.isupper():
        monkeypatch.setenv(option, "5")
        settle(arguments())
    else:
        settle(arguments(**{option: 0.5}))
    [said] = [record.message for record in caplog.records]
    assert option.replace("_", "-") in said.replace("_", "-")
    assert "it has no effect here" in said


@pytest.mark.parametrize(
    ("context", "sentences"),
    [
        (96, []),
        (2048, ["2 of the drafter's 2 layers see a window of the last 96 positions of a context of 2048, as its config says"]),
        (
            4096,
            [
                "2 of the drafter's 2 layers see a window of the last 96 positions of a context of 4096, as its config says",
                "the drafter's positions end at 2048, the context at 4096: texts go on from there without drafts",
            ],
        ),
    ],
)
def test_a_window_and_positions_that_do_not_reach_over_the_context_are_said(context: int, sentences: list[str]) -> None:
    config = check_pair(tiny_pair().target, tiny_pair().drafter).config
    assert list(reach(config, context)) == sentences


def add(name: str, *shape: int) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = torch.zeros(shape, dtype=torch.bfloat16)

    return change


FIRST_CONVOLUTION = "layers.0.attention_conv.base_kernel"
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "mask token of the text's end": (
        {"config": set_key("dflash_config", "mask_token_id", to=0)},
        "mask_token_id and eos_token_id are both 0",
    ),
    "mask token outside": ({"config": set_key("dflash_config", "mask_token_id", to=1024)}, "mask_token_id"),
    "mask token missing": ({"config": set_key("dflash_config", "mask_token_id", to=None)}, "mask_token_id"),
    "vocabulary": ({"config": set_key("vocab_size", to=1000)}, "vocabulary has 1000 ids|shape"),
    "taps beyond": ({"config": set_key("dflash_config", "target_layer_ids", to=[0, 1, 7])}, "layer 7|target_layer_ids"),
    "tap on the last layer": (
        {"config": set_key("dflash_config", "target_layer_ids", to=[0, 1, 3])},
        "holds 3, the target's last layer",
    ),
    "taps missing": ({"config": set_key("dflash_config", "target_layer_ids", to=None)}, "target_layer_ids"),
    "other depth of the target": ({"config": set_key("num_target_layers", to=6)}, "target of 6 layers, this one has 4"),
    "selector's rank missing": ({"config": set_key("dflash_config", "selector_rank", to=None)}, "selector_rank"),
    "convolution's kernel missing": ({"config": set_key("dflash_config", "conv_kernel_size", to=None)}, "conv_kernel_size"),
    "block size missing": ({"config": set_key("dflash_config", "block_size", to=None)}, "block_size"),
    "unknown key": ({"config": set_key("dflash_config", "sample_from_anchor", to=True)}, "sample_from_anchor"),
    "tensor of the selector missing": ({"tensors": remove("candidate_selector.successor_codebook")}, "successor_codebook"),
    "tensor of a convolution missing": ({"tensors": remove(FIRST_CONVOLUTION)}, FIRST_CONVOLUTION),
    "tensor too many": ({"tensors": add("layers.2.mlp.up_proj.weight", 4, 4)}, "layers.2.mlp.up_proj.weight"),
    "embedding of its own": ({"tensors": add("embed_tokens.weight", 1024, 288)}, "brings its own embed_tokens.weight"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_checkpoint_is_refused_by_name_in_sglang_and_by_serve(what: str, engine: Sglang, tmp_path: Path) -> None:
    changes, sentence = BROKEN[what]
    drafter = spoilt(tmp_path / "drafter", **changes)
    with pytest.raises(ValueError, match=f"(?s)dflash2: .*({sentence})"):
        settle(arguments(speculative_draft_model_path=str(drafter)))
    with pytest.raises(Dflash2Error, match=f"(?s)({sentence})"):
        engine.command(tiny_pair().target, drafter, EngineOptions())


def test_a_target_of_another_width_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(tiny_pair().target, target)
    document = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(document | {"hidden_size": 320}))
    with pytest.raises(ValueError, match="features of width 288, the target's are 320"):
        settle(arguments(model_path=str(target)))


def test_sglang_refuses_a_broken_drafter_in_a_sentence_and_does_not_start(tmp_path: Path) -> None:
    drafter = spoilt(tmp_path / "drafter", tensors=remove(FIRST_CONVOLUTION))
    log = tmp_path / "log"
    with (
        pytest.raises(EngineError, match="ended with code 1 before it answered"),
        running(log, drafter=tiny_pair().drafter, instead=drafter),
    ):
        pass
    last = log.read_text().strip().splitlines()[-1]
    assert f"dflash2: {drafter}: 1 of 36 tensors missing: {FIRST_CONVOLUTION}" in log.read_text(), last


def test_a_server_without_the_plugin_is_not_started_with_a_drafter(
    engine: Sglang, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DFLASH2_SGLANG", "off")
    with pytest.raises(EngineError, match="DFLASH2_SGLANG is off"), running(tmp_path / "log", drafter=tiny_pair().drafter):
        pass


def serve(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dflash2_core.cli", "serve", *map(str, arguments), "--engine", "sglang", "--dry-run"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)


def test_serve_prints_the_command_and_refuses_in_a_sentence(tmp_path: Path) -> None:
    pair = tiny_pair()
    done = serve(pair.target, pair.drafter, "--program", PYTHON, "--parallel", "4", "--port", "3000", "--drafts", "5")
    assert done.returncode == 0, done.stderr
    assert f"{PYTHON} -m sglang.launch_server --model-path {pair.target}" in done.stdout
    assert f"--speculative-draft-model-path {pair.drafter} --speculative-num-draft-tokens 6" in done.stdout
    broken = serve(pair.target, spoilt(tmp_path / "drafter", tensors=remove(FIRST_CONVOLUTION)), "--program", PYTHON)
    assert broken.returncode == 2
    assert f"1 of 36 tensors missing: {FIRST_CONVOLUTION}" in " ".join(broken.stderr.split())
