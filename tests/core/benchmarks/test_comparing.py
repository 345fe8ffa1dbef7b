"""Rounds, medians and findings, on the embedded pair and on subjects that misbehave."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dflash2_core import AcceptanceStats, SamplingParams, TransformersEngine
from dflash2_core.assets import tiny_pair
from dflash2_core.benchmarks import Batch, compare
from dflash2_core.benchmarks.benching import _against
from dflash2_core.conformance.subjects import InThisProcess
from dflash2_core.engines import Generated

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12], [13, 14, 15]]
PARAMS = SamplingParams(max_new_tokens=12)
NUM_DRAFTS = 7


class Noted(InThisProcess):
    """Writes down how many prompts came at once, and in which turn."""

    def __init__(self, engine: TransformersEngine, asked: list[tuple[str, int, int]], name: str) -> None:
        super().__init__(engine)
        self.asked, self.name = asked, name

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]:
        assert isinstance(params, SamplingParams)
        self.asked.append((self.name, len(prompts), params.max_new_tokens))
        return super().generate_ids(prompts, params)


class Wrong(InThisProcess):
    """Its last id is another's."""

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]:
        answers = super().generate_ids(prompts, params)
        return [replace(answer, token_ids=[*answer.token_ids[:-1], answer.token_ids[-1] ^ 1]) for answer in answers]


@pytest.fixture(scope="module")
def plain() -> TransformersEngine:
    return TransformersEngine.from_pretrained(tiny_pair().target, dtype="float32", max_batch_size=2)


@pytest.fixture(scope="module")
def drafting() -> TransformersEngine:
    pair = tiny_pair()
    return TransformersEngine.from_pretrained(pair.target, pair.drafter, dtype="float32", max_batch_size=2)


def test_each_round_asks_both_sides_in_turn_and_the_other_begins_next(
    plain: TransformersEngine, drafting: TransformersEngine
) -> None:
    asked: list[tuple[str, int, int]] = []
    sides = Noted(plain, asked, "plain"), Noted(drafting, asked, "drafted")
    batch = compare(*sides, PROMPTS, PARAMS, size=2, rounds=3)
    timed = [name for name, size, budget in asked if budget == PARAMS.max_new_tokens]
    assert timed == ["plain"] * 2 + ["drafted"] * 4 + ["plain"] * 4 + ["drafted"] * 2
    assert {size for _, size, _ in asked} == {2}
    assert (len(batch.plain), len(batch.drafted), len(batch.answers)) == (3, 3, 12)


def test_what_both_sides_wrote_is_compared_and_what_was_drafted_is_counted(
    plain: TransformersEngine, drafting: TransformersEngine
) -> None:
    batch = compare(InThisProcess(plain), InThisProcess(drafting), PROMPTS, PARAMS, size=2, rounds=2)
    assert (batch.num_identical, batch.num_texts) == (8, 8)
    # What warmed the engine up is counted before: these are the cycles of the answers alone.
    assert batch.acceptance.num_drafted == sum(answer.num_drafted for answer in batch.answers) > 0
    assert _against(batch, NUM_DRAFTS) == []


def test_a_text_that_is_not_the_targets_is_a_finding(plain: TransformersEngine, drafting: TransformersEngine) -> None:
    batch = compare(InThisProcess(plain), Wrong(drafting), PROMPTS, PARAMS, size=2, rounds=1)
    [finding] = _against(batch, NUM_DRAFTS)
    assert finding.startswith("4 of 4 texts, 2 at once, are not those of plain decoding")


def test_a_drafter_that_is_off_is_a_finding(plain: TransformersEngine) -> None:
    batch = compare(InThisProcess(plain), InThisProcess(plain), PROMPTS, PARAMS, size=2, rounds=1)
    [finding] = _against(batch, NUM_DRAFTS)
    assert finding.startswith("nothing was drafted for")


def test_the_speed_up_is_the_median_of_ratios_and_not_the_ratio_of_medians() -> None:
    batch = Batch(
        size=1,
        plain=[10.0, 20.0, 40.0],
        drafted=[30.0, 20.0, 44.0],
        num_texts=3,
        num_identical=3,
        acceptance=AcceptanceStats(),
        answers=[],
    )
    assert batch.speed_up == pytest.approx(1.1)
    assert batch.to_dict()["tokens_per_s"] == {"plain": 20.0, "drafted": 30.0}
