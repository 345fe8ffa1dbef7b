"""A text that leaves plain decoding's is told from a tie of two numbers, and each is reported where it begins."""

from dataclasses import replace

import pytest
import torch

from dflash2_core import SamplingParams
from dflash2_core.conformance.cases import Case
from dflash2_core.conformance.identity import TIES, Difference, differences
from dflash2_core.engines import Generated
from dflash2_core.transformers_engine.target import Target
from tests.engines.pair import target, thirty_prompts, written_plainly

CASE = Case("code", tuple(thirty_prompts()[0]), SamplingParams(max_new_tokens=64))
PLAIN = Generated(token_ids=[5, 6, 7, 8], text="abcd", finish_reason="length", num_drafted=0, num_accepted=0)


def found(
    got: Generated, expected: Generated = PLAIN, case: Case = CASE, of: Target | None = None, tie: float = TIES["float32"]
) -> list[Difference]:
    return differences([case], [expected], [got], way="alone", target=of, tie=tie)


@pytest.fixture
def with_two_equal_logits(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target to whom 6 and 9 are all but equally likely, the largest logit being 2."""
    logits = torch.zeros(1, 1, 1024)
    logits[..., 0], logits[..., 6], logits[..., 9] = 2.0, 1.0, 1.0 + 1e-4
    own = Target(target().model)
    monkeypatch.setattr(own, "forward", lambda *args, **options: (logits, None))
    return own


def test_equal_answers_leave_nothing_to_say() -> None:
    assert found(replace(PLAIN, num_drafted=7, num_accepted=3)) == []


def test_a_difference_is_reported_where_it_begins() -> None:
    (difference,) = found(replace(PLAIN, token_ids=[5, 9, 1, 1]))
    assert (difference.position, difference.expected, difference.found) == (1, 6, 9)
    assert difference.verdict == "not lossless"
    assert "token 1 is 9, plain decoding has 6" in str(difference)


@pytest.mark.parametrize("ids", [[5, 6, 7], [5, 6, 7, 8, 9]], ids=["too short", "too long"])
def test_a_text_of_another_length_is_no_tie_whatever_the_logits(ids: list[int], with_two_equal_logits: Target) -> None:
    (difference,) = found(replace(PLAIN, token_ids=ids), of=with_two_equal_logits)
    assert difference.position == min(len(ids), 4)
    assert difference.gap is None
    assert difference.verdict == "not lossless"


def test_another_reason_to_end_is_a_difference() -> None:
    (difference,) = found(replace(PLAIN, finish_reason="stop"))
    assert difference.verdict == "not lossless"


def test_two_ids_that_are_all_but_equal_are_a_tie(with_two_equal_logits: Target) -> None:
    (difference,) = found(replace(PLAIN, token_ids=[5, 9, 1, 1]), of=with_two_equal_logits)
    assert difference.gap == pytest.approx(5e-5, rel=1e-2)
    assert difference.verdict == "numeric tie"


def test_what_is_a_tie_in_bfloat16_is_none_in_float32(with_two_equal_logits: Target) -> None:
    parted = replace(PLAIN, token_ids=[5, 7, 1, 1])
    (in_float32,) = found(parted, of=with_two_equal_logits)
    (in_bfloat16,) = found(parted, of=with_two_equal_logits, tie=0.6)
    assert (in_float32.verdict, in_bfloat16.verdict) == ("not lossless", "numeric tie")


def test_the_real_targets_second_choice_is_no_tie() -> None:
    plain = written_plainly()[0]
    expected = replace(PLAIN, token_ids=plain.token_ids)
    got = replace(PLAIN, token_ids=[*plain.token_ids[:10], (plain.token_ids[10] + 1) % 1024])
    (difference,) = found(got, expected, of=target())
    assert difference.gap is not None
    assert difference.gap > 100 * TIES["float32"]
    assert difference.verdict == "not lossless"


def test_behind_a_stop_string_the_text_counts_and_not_the_ids() -> None:
    stopping = replace(CASE, params=SamplingParams(stop=("d",)))
    assert found(replace(PLAIN, token_ids=[5, 6, 7, 8, 9]), case=stopping) == []
    assert found(replace(PLAIN, text="abc"), case=stopping) != []
