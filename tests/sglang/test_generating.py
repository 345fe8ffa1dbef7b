"""An option that SGLang would honour otherwise than `SamplingParams` says is refused; answers become statistics."""

import math
from typing import Any

import pytest

from dflash2_core import SamplingParams
from dflash2_core.assets import tiny_pair
from dflash2_core.engines import Command, EngineOptions
from dflash2_core.errors import CompatibilityError, EngineError, SamplingError
from dflash2_sglang.command import server_command
from dflash2_sglang.generating import body, generated
from dflash2_sglang.metrics import acceptance
from dflash2_sglang.pair import check_pair
from tests.sglang.servers import PYTHON

NOT_HONOURED: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "seed": 3,
    "logprobs": 2,
    "logits_processor": lambda history, logits: logits,
    "speculate": False,
}


@pytest.mark.parametrize("name", NOT_HONOURED)
def test_an_option_that_is_not_honoured_exactly_is_refused_by_name(name: str) -> None:
    with pytest.raises(SamplingError, match=f"^{name}"):
        body([1, 2], SamplingParams(**{name: NOT_HONOURED[name]}))


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        (SamplingParams(temperature=1, min_p=0.1, top_p=0.9), "min_p beside top_p"),
        (SamplingParams(temperature=1, top_k=5, top_p=0.9), "top_p beside top_k"),
        (SamplingParams(logit_bias={3: -math.inf}), "logit_bias of -inf"),
    ],
)
def test_combinations_that_sglang_orders_otherwise_are_refused(params: SamplingParams, sentence: str) -> None:
    with pytest.raises(SamplingError, match=sentence):
        body([1], params)


def test_every_option_is_sent_refused_or_spent_before() -> None:
    asked = body([1], SamplingParams(logit_bias={4: 1.0}))["sampling_params"]
    spent = {"n", "constraint"}
    for name in SamplingParams.__dataclass_fields__:
        assert name in asked or name in NOT_HONOURED or name in spent, name


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(SamplingError, match="the prompt is empty"):
        body([], SamplingParams())


def test_an_answer_of_another_shape_is_a_sentence() -> None:
    with pytest.raises(EngineError, match="'meta_info'"):
        generated({"output_ids": [1], "text": "x"})


def test_meta_info_becomes_acceptance() -> None:
    stats = acceptance({"spec_verify_ct": 5, "spec_num_proposed_drafts": 35, "spec_correct_drafts_histogram": [2, 1, 0, 2]})
    assert (stats.num_cycles, stats.num_drafted, stats.num_accepted, stats.num_committed) == (5, 35, 7, 12)
    assert stats.accepted_per_position == [3, 2, 2, 0, 0, 0, 0]
    assert stats.mean_acceptance_length == pytest.approx(12 / 5)
    assert acceptance({}).num_cycles == 0


def command_of(options: EngineOptions) -> Command:
    pair = tiny_pair()
    return server_command(PYTHON, pair.target, (pair.drafter, check_pair(pair.target, pair.drafter)), options, on_cpu=True)


@pytest.mark.parametrize(
    "option", ["--speculative-algorithm", "--port=1", "--context-length", "--speculative_num_draft_tokens"]
)
def test_what_this_adapter_says_is_not_handed_on(option: str) -> None:
    with pytest.raises(EngineError, match="is not handed on to SGLang: (use|it) "):
        command_of(EngineOptions(extra=(option, "1")))


def test_dtype_and_memory_are_said_once() -> None:
    said = " ".join(command_of(EngineOptions(dtype="bfloat16", memory=0.25, extra=("--stream-interval", "2"))).argv)
    assert "--dtype bfloat16 --mem-fraction-static 0.25 " in said
    with pytest.raises(
        EngineError, match="--dtype is not handed on to SGLang: it is bfloat16 already: use dflash2's own option"
    ):
        command_of(EngineOptions(dtype="bfloat16", extra=("--dtype=float32",)))
    with pytest.raises(EngineError, match="--mem-fraction-static is not handed on to SGLang: use dflash2's own --memory"):
        command_of(EngineOptions(memory=0.4, extra=("--mem-fraction-static=0.8",)))
    handed_on = " ".join(command_of(EngineOptions(extra=("--dtype", "float32"))).argv)
    assert handed_on.count("--dtype") == 1
    assert "mem-fraction" not in handed_on


def test_seeds_that_a_cpu_would_not_honour_are_refused_at_the_start() -> None:
    with pytest.raises(EngineError, match="--enable-deterministic-inference is not handed on .* seed has no effect"):
        command_of(EngineOptions(extra=("--enable-deterministic-inference",)))


def test_lossy_switches_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="drafts would be kept that the target does not choose"):
        command_of(EngineOptions(extra=("--speculative-accept-threshold-acc", "0.5")))
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "4")
    with pytest.raises(EngineError, match="SGLANG_SIMULATE_ACC_LEN"):
        command_of(EngineOptions())


def test_the_command_says_what_is_run_and_drafts_are_counted_without_the_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    command = command_of(EngineOptions(num_drafts=3, parallel=4, context=512, port=7))
    argv = " ".join(command.argv)
    assert "-m sglang.launch_server" in argv
    assert "--speculative-num-draft-tokens 4" in argv
    assert "--max-running-requests 4 --context-length 512" in argv
    assert "--port 7" in argv
    assert command.env["SGLANG_USE_CPU_ENGINE"] == "1"
    with pytest.raises(CompatibilityError, match="9 drafts were asked for, and a drafter of block size 8 makes 7"):
        command_of(EngineOptions(num_drafts=9))
