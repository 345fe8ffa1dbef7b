"""The prompt cache, slots used again, and the context's end: with a drafter as without."""

from itertools import chain

import pytest
from tokenizers import Tokenizer

from dflash2_core import SamplingParams
from dflash2_core.assets import tiny_pair
from dflash2_core.errors import EngineError, SamplingError
from tests.llama_cpp.conftest import Serve
from tests.llama_cpp.test_greedy import assert_drafted, ids

CONTEXT = 256
DRAFTS = 7


@pytest.fixture(scope="module")
def long_prompts(prompts: list[list[int]]) -> list[list[int]]:
    """Of every length that leaves 1 to 24 positions free, and one that leaves many."""
    text = list(chain(*prompts))
    return [text[i : i + CONTEXT - left] for i, left in enumerate([*range(2, 26), 60])]


def test_a_cached_prompt_gives_the_same_ids_and_drafts(serve: Serve, prompts: list[list[int]]) -> None:
    server, params = serve("f32"), SamplingParams(max_new_tokens=48)
    prompt = max(prompts, key=len)
    [cold], [warm] = (server.generate_ids([prompt], params) for _ in range(2))
    assert warm.num_cached > len(prompt) / 2
    assert warm.token_ids == cold.token_ids
    assert (warm.num_drafted, warm.num_accepted) == (cold.num_drafted, cold.num_accepted)
    assert warm.num_accepted > 0


def test_a_prompt_that_goes_on_from_a_cached_one_gives_the_ids_of_a_fresh_server(
    serve: Serve, prompts: list[list[int]]
) -> None:
    server, params = serve("f32"), SamplingParams(max_new_tokens=24)
    prompt = max(prompts, key=len)
    [first] = server.generate_ids([prompt], params)
    longer = [*prompt, *first.token_ids[:20], *prompts[0]]
    [again] = server.generate_ids([longer], params)
    assert again.num_cached >= len(prompt)
    assert_drafted([again])
    assert again.token_ids == serve(None, 4).generate_ids([longer], params)[0].token_ids


def test_a_short_request_after_a_long_one_is_as_if_it_were_the_first(serve: Serve, prompts: list[list[int]]) -> None:
    server, params = serve("f32"), SamplingParams(max_new_tokens=32)
    short, long = min(prompts, key=len), list(chain(*prompts))[:1200]
    expected = ids(serve(None).generate_ids([short, long, short], params))
    answers = server.generate_ids([short, long, short], params)
    assert ids(answers) == expected
    assert_drafted(answers)


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_text_that_fills_the_context_is_that_of_plain_llama_cpp(
    parallel: int, serve: Serve, long_prompts: list[list[int]]
) -> None:
    params = SamplingParams(max_new_tokens=1000)
    answers = serve("f32", parallel, CONTEXT).generate_ids(long_prompts, params)
    assert ids(answers) == ids(serve(None, parallel, CONTEXT).generate_ids(long_prompts, params))
    full = [len(prompt) + len(answer.token_ids) == CONTEXT - 1 for prompt, answer in zip(long_prompts, answers, strict=True)]
    assert sum(full) > len(full) / 2, "the texts ended before the context did"
    assert {answer.finish_reason for answer, filled in zip(answers, full, strict=True) if filled} == {"length"}
    assert sum(answer.num_accepted for answer in answers) > 0


@pytest.fixture(scope="module")
def predictable() -> list[list[int]]:
    """Prompts whose last cycle before the context's end keeps every draft."""
    tokenizer = Tokenizer.from_file(str(tiny_pair().target / "tokenizer.json"))
    text = tokenizer.encode("import os\n" * CONTEXT).ids
    return [text[: CONTEXT - left] for left in range(9, 26)]


def test_without_a_budget_llama_cpp_ends_a_drafted_text_at_most_a_block_early(
    serve: Serve, predictable: list[list[int]]
) -> None:
    """A fault of llama.cpp's, see UPSTREAM.md: this tells when it is gone."""
    lost = []
    for prompt in predictable:
        asked = {"prompt": prompt, "temperature": 0, "return_tokens": True}
        plain, drafted = (serve(outtype, 1, CONTEXT).ask("/completion", asked)["tokens"] for outtype in (None, "f32"))
        assert plain[: len(drafted)] == drafted
        lost.append(len(plain) - len(drafted))
    assert max(lost) == DRAFTS


def test_asked_through_the_adapter_no_token_is_lost_there(serve: Serve, predictable: list[list[int]]) -> None:
    params = SamplingParams(max_new_tokens=1000)
    answers = serve("f32", 1, CONTEXT).generate_ids(predictable, params)
    assert ids(answers) == ids(serve(None, 1, CONTEXT).generate_ids(predictable, params))
    assert [len(answer.token_ids) for answer in answers] == [CONTEXT - 1 - len(prompt) for prompt in predictable]
    assert sum(answer.num_accepted for answer in answers) > 0


def test_a_prompt_that_leaves_no_room_is_a_sentence(serve: Serve, long_prompts: list[list[int]]) -> None:
    with pytest.raises(SamplingError, match="leaves no room"):
        serve("f32", 1, CONTEXT).generate_ids([long_prompts[0] * 2], SamplingParams())


def test_an_id_outside_the_vocabulary_is_a_sentence_and_the_server_goes_on(serve: Serve, prompts: list[list[int]]) -> None:
    server = serve("f32")
    with pytest.raises(EngineError, match="llama-server refused /completion"):
        server.generate_ids([[5000]], SamplingParams())
    assert server.generate_ids(prompts[:1], SamplingParams(max_new_tokens=8))[0].token_ids
