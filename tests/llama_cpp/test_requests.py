"""An option that llama.cpp would honour otherwise than `SamplingParams` says is refused before it is sent."""

import pytest

from dflash2_core import SamplingParams
from dflash2_core.errors import EngineError, SamplingError
from dflash2_llama_cpp.metrics import acceptance
from dflash2_llama_cpp.requests import body, generated

NOT_HONOURED = {
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "stop_token_ids": [3],
    "ignore_eos": True,
    "logprobs": 2,
    "logits_processor": lambda history, logits: logits,
    "speculate": False,
    "seed": 2**32 - 1,
}


@pytest.mark.parametrize("name", NOT_HONOURED)
def test_an_option_that_is_not_honoured_exactly_is_refused_by_name(name: str) -> None:
    with pytest.raises(SamplingError, match=f"^{name}"):
        body([1, 2], SamplingParams(**{name: NOT_HONOURED[name]}), room=10)


def test_every_option_is_sent_refused_or_spent_before() -> None:
    asked = body([1], SamplingParams(seed=3, logit_bias={4: 1.0}), room=10)
    renamed = {"repetition_penalty": "repeat_penalty", "max_new_tokens": "n_predict"}
    spent = {"n", "constraint"}
    for name in SamplingParams.__dataclass_fields__:
        assert renamed.get(name, name) in asked or name in NOT_HONOURED or name in spent, name


def test_a_budget_ends_where_the_context_does() -> None:
    assert body([1], SamplingParams(max_new_tokens=50), room=10)["n_predict"] == 10
    assert body([1], SamplingParams(max_new_tokens=5), room=10)["n_predict"] == 5


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(SamplingError, match="the prompt is empty"):
        body([], SamplingParams(), room=10)


def test_an_answer_of_another_shape_is_a_sentence() -> None:
    with pytest.raises(EngineError, match="'tokens'"):
        generated({"timings": {}, "content": "x", "stop_type": "eos"})


def test_metrics_without_drafts_are_a_sentence() -> None:
    with pytest.raises(EngineError, match="too old to tell acceptance"):
        acceptance("llamacpp:n_decode_total 5\n")
