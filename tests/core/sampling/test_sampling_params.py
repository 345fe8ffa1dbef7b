"""What a request may ask for, and how it is told that it may not."""

import dataclasses
import math
import pickle

import numpy as np
import pytest

from dflash2_core.errors import SamplingError
from dflash2_core.sampling import SamplingParams

NAN, INF = math.nan, math.inf

REFUSED = {
    "temperature": [-0.1, NAN, INF, "1", None, True],
    "top_k": [-1, 1.5, "3", None, True],
    "top_p": [0, -0.5, 1.0001, NAN, None],
    "min_p": [-0.1, 1.1, NAN, None],
    "repetition_penalty": [0, -1, NAN, INF, None, 1e-300, 1e300],
    "presence_penalty": [NAN, INF, None, 1e300],
    "frequency_penalty": [NAN, -INF, "x", -1e300],
    "logit_bias": [{5: 1e300}, {5: -1e300}, {-1: 0.0}, {0: INF}, {0: NAN}, {"0": 1.0}, {0: "x"}, [(0, 1.0)], {1.5: 1.0}],
    "n": [0, -1, 1.5, None, True],
    "seed": [1.5, "7", 2**64, -(2**63) - 1, True],
    "max_new_tokens": [0, -5, 1.5, None],
    "stop": ["", ("a", ""), (1,), 5, None],
    "stop_token_ids": [(-1,), ("a",), 3, "12", None],
    "ignore_eos": [1, None, "yes"],
    "speculate": [0, None, "no"],
    "constraint": [3, "f", len],
    "logprobs": [-1, 1.5, True],
    "logits_processor": [3, "f"],
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option in REFUSED for value in REFUSED[option]])
def test_a_senseless_value_is_refused_in_a_sentence_that_shows_it(option: str, value: object) -> None:
    with pytest.raises(SamplingError) as refusal:
        SamplingParams(**{option: value})
    assert str(refusal.value).startswith(f"{option} is {value!r}; it must be ")


def test_the_refusals_cover_every_option() -> None:
    assert set(REFUSED) == {option.name for option in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "top_p": 1, "min_p": 1},
        {"temperature": 1e-300},
        {"temperature": np.float32(0.7), "top_k": np.int64(5), "seed": np.int64(3)},
        {"logit_bias": {3: -INF, 4: 100}},
        {"logit_bias": {}},
        {"seed": 2**64 - 1},
        {"seed": -(2**63)},
        {"stop": ["a", "b"], "stop_token_ids": [1, 2]},
        {"presence_penalty": -2, "frequency_penalty": 2.0, "repetition_penalty": 0.5},
    ],
)
def test_sensible_values_are_taken(options: dict[str, object]) -> None:
    params = SamplingParams(**options)
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, max_new_tokens=3).max_new_tokens == 3
    hash(params)


def test_one_stop_string_stands_for_a_tuple_of_one() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[7]).stop_token_ids == (7,)


def test_params_do_not_change_with_what_they_were_made_from() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[2] = 3.0
    assert params.logit_bias == {1: 2.0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 1.0


@pytest.mark.parametrize(
    ("options", "greedy", "history", "rewrites"),
    [
        ({}, True, False, False),
        ({"temperature": 1.0}, False, False, False),
        ({"temperature": 1.0, "top_k": 1}, True, False, False),
        ({"temperature": 1.0, "min_p": 1.0}, True, False, False),
        ({"temperature": 1.0, "top_p": 1e-4}, False, False, False),
        ({"logit_bias": {}}, True, False, False),
        ({"logit_bias": {1: 1.0}}, True, False, True),
        ({"repetition_penalty": 1.1}, True, True, True),
        ({"presence_penalty": 0.1}, True, True, True),
        ({"frequency_penalty": -0.1}, True, True, True),
        ({"logits_processor": lambda history, logits: logits}, True, True, True),
    ],
)
def test_params_say_which_path_they_need(options, greedy: bool, history: bool, rewrites: bool) -> None:
    params = SamplingParams(**options)
    assert (params.is_greedy, params.needs_history, params.rewrites_logits) == (greedy, history, rewrites)


@pytest.mark.parametrize("options", [{"logit_bias": {37: 1.0}}, {"stop_token_ids": [2, 40]}])
def test_an_id_outside_the_vocabulary_is_refused_where_the_vocabulary_is_known(options) -> None:
    params = SamplingParams(**options)
    params.check_vocabulary(64)
    with pytest.raises(SamplingError, match=r"the target's ids are 0\.\.36"):
        params.check_vocabulary(37)
