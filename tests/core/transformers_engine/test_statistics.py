"""Acceptance statistics: counted as verified, cut to what was committed, the same in any grouping."""

import json
from collections.abc import Iterable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash2_core import AcceptanceStats, TransformersEngine
from dflash2_core.transformers_engine import Target
from tests.core.toys import drafter_config, oracle, random_drafter
from tests.core.transformers_engine.conftest import NEW, complete, random_prompt

RUNS = st.lists(st.integers(0, 7), max_size=20)


def recorded(runs: Sequence[int], drafted: int = 7) -> AcceptanceStats:
    stats = AcceptanceStats()
    for run in runs:
        stats.record(drafted, run, run + 1)
    return stats


def test_accepted_runs_of_3_2_1_0() -> None:
    stats = recorded([3, 2, 1, 0], drafted=3)
    assert stats.num_cycles == 4
    assert (stats.num_drafted, stats.num_accepted, stats.num_committed) == (12, 6, 10)
    assert stats.mean_acceptance_length == 2.5  # the recovery or bonus token included: drafts alone are 1.5
    assert stats.accepted_per_position == [3, 2, 1]
    assert stats.drafted_per_position == [4, 4, 4]
    assert stats.num_cut == 0


@given(st.lists(RUNS, max_size=6))
def test_no_grouping_changes_the_totals(groups: list[list[int]]) -> None:
    together = recorded([run for group in groups for run in group])
    apart = AcceptanceStats.total(recorded(group) for group in groups)
    assert apart == together
    assert AcceptanceStats.total([apart]) == apart


def mean_of_means(parts: Iterable[AcceptanceStats]) -> AcceptanceStats:
    each = list(parts)
    whole = total(each)
    whole.num_committed = round(sum(part.mean_acceptance_length for part in each) / max(1, len(each)) * whole.num_cycles)
    return whole


total = AcceptanceStats.total


def test_a_mean_of_means_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceptanceStats, "total", mean_of_means)
    with pytest.raises(AssertionError):
        test_no_grouping_changes_the_totals.hypothesis.inner_test([[7, 7, 7], [0]])  # type: ignore[attr-defined]


def test_a_mean_that_leaves_out_the_targets_own_tokens_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceptanceStats, "mean_acceptance_length", property(lambda self: self.num_accepted / self.num_cycles))
    with pytest.raises(AssertionError):
        test_accepted_runs_of_3_2_1_0()


@given(RUNS)
def test_the_positions_add_up(runs: list[int]) -> None:
    stats = recorded(runs)
    assert sum(stats.accepted_per_position) == stats.num_accepted == sum(runs)
    assert sum(stats.drafted_per_position) == stats.num_drafted == 7 * len(runs)
    assert len(stats.accepted_per_position) == (7 if runs else 0)
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
    assert stats.mean_acceptance_length == pytest.approx((sum(runs) + len(runs)) / len(runs) if runs else 0.0)


def test_a_total_leaves_its_parts_alone() -> None:
    parts = [recorded([3, 1]), recorded([0], drafted=2)]
    parts[0].skip("no drafter")
    before = [part.to_dict() for part in parts]
    total = AcceptanceStats.total(parts)
    total.record(7, 7, 8)
    total.skip("no drafter")
    assert [part.to_dict() for part in parts] == before


def test_blocks_of_different_lengths_are_counted_by_position() -> None:
    total = AcceptanceStats.total([recorded([2, 0], drafted=2), recorded([7])])
    assert total.drafted_per_position == [3, 3, 1, 1, 1, 1, 1]
    assert total.accepted_per_position == [2, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("accepted", "committed", "kept", "cut"), [(5, 6, 5, 0), (5, 5, 5, 1), (5, 3, 3, 1), (5, 1, 1, 1), (0, 1, 0, 0)]
)
def test_a_run_cut_short_counts_what_was_committed_and_says_so(accepted: int, committed: int, kept: int, cut: int) -> None:
    stats = AcceptanceStats()
    stats.record(7, accepted, committed)
    assert (stats.num_accepted, stats.num_committed, stats.num_cut) == (kept, committed, cut)
    assert stats.accepted_per_position == [1] * kept + [0] * (7 - kept)


def test_without_drafting_there_is_no_division_by_zero() -> None:
    stats = AcceptanceStats()
    stats.skip("no drafter")
    assert stats.mean_acceptance_length == 0.0
    assert stats.num_target_passes == 1
    assert AcceptanceStats.total([]) == AcceptanceStats()


def test_statistics_become_json() -> None:
    stats = recorded([3, 2, 1, 0], drafted=3)
    stats.skip("block size 1")
    told = json.loads(json.dumps(stats.to_dict()))
    assert told["mean_acceptance_length"] == 2.5
    assert told["skipped"] == {"block size 1": 1}
    assert told["accepted_per_position"] == [3, 2, 1]


PROMPT = random_prompt(9, seed=1)


def test_passes_without_a_drafter_are_counted_with_the_reason(target: Target) -> None:
    stats = complete(TransformersEngine(target), PROMPT).stats
    assert stats.skipped == {"no drafter": NEW - 1}
    assert (stats.num_cycles, stats.num_drafted, stats.mean_acceptance_length) == (0, 0, 0.0)


def test_passes_with_drafting_off_are_counted_with_the_reason(target: Target) -> None:
    with pytest.warns(UserWarning, match="drafting is off"):
        engine = TransformersEngine(target, random_drafter(), block_size=1)
    assert complete(engine, PROMPT).stats.skipped == {"block size 1": NEW - 1}


def test_passes_past_the_drafters_context_are_counted_with_the_reason(target: Target) -> None:
    stats = complete(TransformersEngine(target, random_drafter(max_position_embeddings=5)), PROMPT).stats
    assert stats.skipped == {"past the drafter's context limit": NEW - 1}


@pytest.mark.parametrize("where", ["taps", "every cycle"])
def test_passes_with_drafts_that_are_not_finite_are_counted_with_the_reason(where: str, target: Target) -> None:
    text = complete(TransformersEngine(target), PROMPT).token_ids
    drafter = random_drafter()
    (drafter.fc.weight if where == "taps" else drafter.norm.weight).fill_(torch.nan)
    completion = complete(TransformersEngine(target, drafter), PROMPT)
    assert completion.token_ids == text
    assert completion.stats.skipped == {"drafter output not finite": NEW - 2, "last token of the budget": 1}
    assert completion.stats.num_drafted == 0


def test_drafts_counted_that_were_never_committed_are_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short() -> None:
        text = complete(TransformersEngine(target), PROMPT).token_ids
        at = next(i for i in range(2, 8) if text[i] not in text[:i])
        stats = complete(TransformersEngine(target, oracle(PROMPT, text)), PROMPT, stop_token_ids=[text[at]]).stats
        assert (stats.num_cycles, stats.num_accepted, stats.num_committed, stats.num_cut) == (1, at, at, 1)

    cut_short()
    record = AcceptanceStats.record
    monkeypatch.setattr(
        AcceptanceStats, "record", lambda self, drafted, accepted, committed: record(self, drafted, accepted, accepted + 1)
    )
    with pytest.raises(AssertionError):
        cut_short()


def test_the_sum_over_requests_is_per_token_not_per_request(target: Target) -> None:
    text = complete(TransformersEngine(target), PROMPT).token_ids
    engine = TransformersEngine(target, oracle(PROMPT, text))
    long, short = complete(engine, PROMPT), complete(engine, PROMPT, max_new_tokens=3)
    total = AcceptanceStats.total([long.stats, short.stats])
    assert total.num_cycles == long.stats.num_cycles + short.stats.num_cycles
    assert total.mean_acceptance_length == total.num_committed / total.num_cycles
    assert len(total.accepted_per_position) == drafter_config().num_drafts
