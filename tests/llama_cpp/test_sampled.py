"""Above temperature 0: for a seed the ids are those of plain llama.cpp, so that the law of the text is the target's."""

from collections import Counter
from itertools import chain

import pytest

from dflash2_core import SamplingParams
from tests.llama_cpp.conftest import Serve
from tests.llama_cpp.test_greedy import ids

SETTINGS = {
    "cool": {"temperature": 0.7},
    "warm": {"temperature": 1.0},
    "filtered": {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "penalised": {"temperature": 0.8, "repetition_penalty": 1.2},
    "biased": {"temperature": 0.8, "logit_bias": {20: -float("inf"), 30: 2.0}},
}


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_seed_gives_the_ids_of_plain_llama_cpp(setting: str, parallel: int, serve: Serve, prompts: list[list[int]]) -> None:
    asked = prompts[::2]
    params = [SamplingParams(**SETTINGS[setting], seed=7 + i, max_new_tokens=48) for i in range(len(asked))]
    answers = serve("f32", parallel).generate_ids(asked, params)
    assert ids(answers) == ids(serve(None, parallel).generate_ids(asked, params))
    assert sum(answer.num_drafted for answer in answers) > 500
    assert sum(answer.num_accepted for answer in answers) > 50


def test_another_seed_gives_another_text(serve: Serve, prompts: list[list[int]]) -> None:
    [one], [other] = (
        serve("f32").generate_ids(prompts[:1], SamplingParams(temperature=1.0, seed=seed, max_new_tokens=32)) for seed in (1, 2)
    )
    assert one.token_ids != other.token_ids


def test_several_completions_are_those_of_the_seeds_that_follow(serve: Serve, prompts: list[list[int]]) -> None:
    server = serve("f32", 4)
    several = server.generate_ids(prompts[:2], SamplingParams(temperature=1.0, seed=5, n=3, max_new_tokens=24))
    params = [SamplingParams(temperature=1.0, seed=seed, max_new_tokens=24) for seed in (5, 6, 7)]
    assert ids(several) == ids(server.generate_ids([prompts[0]] * 3 + [prompts[1]] * 3, params * 2))


def test_a_forbidden_id_never_comes(serve: Serve, prompts: list[list[int]]) -> None:
    answers = serve("f32", 4).generate_ids(prompts, SamplingParams(max_new_tokens=32))
    [(token, count)] = Counter(chain(*ids(answers))).most_common(1)
    assert count > 10
    forbidden = SamplingParams(max_new_tokens=32, logit_bias={token: -float("inf")})
    assert token not in set(chain(*ids(serve("f32", 4).generate_ids(prompts, forbidden))))
