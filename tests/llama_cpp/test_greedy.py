"""With a drafter the ids are those of plain llama.cpp and of the Transformers engine; drafts were made and kept."""

import pytest

from dflash2_core import Completion
from dflash2_core.engines import Generated
from tests.engines.pair import GREEDY
from tests.llama_cpp.conftest import OUTTYPES, Serve

DEFAULT = ("-t", "1")
"""llama.cpp's own choice of flash attention and of the type of keys and values."""


def ids(answers: list[Generated] | list[Completion]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def assert_drafted(answers: list[Generated]) -> None:
    """In every text that is long enough for a draft, and kept in most."""
    long = [answer for answer in answers if len(answer.token_ids) > 2]
    assert long
    assert all(answer.num_drafted > 0 for answer in long)
    assert sum(answer.num_accepted > 0 for answer in long) > len(long) / 2


@pytest.mark.parametrize("parallel", [1, 4])
def test_plain_llama_cpp_writes_what_the_transformers_engine_writes(
    parallel: int, serve: Serve, prompts: list[list[int]], by_transformers: list[Completion]
) -> None:
    answers = serve(None, parallel).generate_ids(prompts, GREEDY)
    assert ids(answers) == ids(by_transformers)
    assert [answer.finish_reason for answer in answers] == [completion.finish_reason for completion in by_transformers]
    assert {answer.num_drafted for answer in answers} == {0}


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("outtype", OUTTYPES)
def test_a_drafter_changes_no_id(
    outtype: str, parallel: int, serve: Serve, prompts: list[list[int]], by_transformers: list[Completion]
) -> None:
    answers = serve(outtype, parallel).generate_ids(prompts, GREEDY)
    assert ids(answers) == ids(by_transformers)
    assert ids(answers) == ids(serve(None, parallel).generate_ids(prompts, GREEDY))
    assert_drafted(answers)


def test_a_drafter_changes_no_id_with_what_llama_cpp_chooses_by_itself(serve: Serve, prompts: list[list[int]]) -> None:
    answers = serve("bf16", 1, None, DEFAULT).generate_ids(prompts, GREEDY)
    assert ids(answers) == ids(serve(None, 1, None, DEFAULT).generate_ids(prompts, GREEDY))
    assert_drafted(answers)


def test_in_float32_every_prompt_gets_as_many_drafts_as_in_the_core_and_keeps_as_many(
    serve: Serve, prompts: list[list[int]], drafted_by_transformers: list[Completion]
) -> None:
    answers = serve("f32").generate_ids(prompts, GREEDY)
    counts = [completion.stats for completion in drafted_by_transformers]
    assert [answer.text for answer in answers] == [completion.text for completion in drafted_by_transformers]
    assert [answer.num_drafted for answer in answers] == [stats.num_drafted for stats in counts]
    # A drafted end of sequence, which cuts its block, is the target's own token to llama.cpp.
    assert [answer.num_accepted for answer in answers] == [stats.num_accepted - stats.num_cut for stats in counts]


def test_acceptance_adds_up_and_is_near_the_cores(serve: Serve, prompts: list[list[int]]) -> None:
    server = serve("f32", 1)
    before = server.acceptance()
    answers = server.generate_ids(prompts, GREEDY)
    after = server.acceptance()
    drafted, accepted = (sum(getattr(answer, name) for answer in answers) for name in ("num_drafted", "num_accepted"))
    assert after.num_drafted - before.num_drafted == drafted
    assert (
        after.num_accepted - before.num_accepted
        == accepted
        == sum(after.accepted_per_position) - sum(before.accepted_per_position)
    )
    assert len(after.accepted_per_position) == 7
    assert sorted(after.accepted_per_position, reverse=True) == after.accepted_per_position
    cycles = after.num_cycles - before.num_cycles
    assert 2.5 < (cycles + accepted) / cycles < 4.5
