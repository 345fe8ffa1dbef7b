"""Two engines of one law are not told apart; of two laws they are."""

import random
from collections.abc import Sequence

import pytest

from dflash2_core.conformance.two_samples import compare_laws
from dflash2_core.errors import SamplingError

Weights = Sequence[float]
FAIR, UNFAIR = (4.0, 3.0, 2.0, 1.0), (6.0, 2.0, 1.5, 0.5)


def written(weights: Weights, seed: int, num_texts: int = 200) -> list[tuple[object, list[int]]]:
    draws = random.Random(seed)
    return [(f"prompt {i % 4}", draws.choices(range(4), weights, k=12)) for i in range(num_texts)]


def test_one_law_is_not_called_two() -> None:
    p_values = [compare_laws(written(FAIR, seed), written(FAIR, 100 + seed)).p_value for seed in range(3)]
    assert min(p_values) > 1e-3
    assert max(p_values) > 0.2


def test_two_laws_are_told_apart() -> None:
    report = compare_laws(written(FAIR, 1), written(UNFAIR, 2))
    assert not report.lossless
    assert "NOT one law" in str(report)


def test_laws_that_differ_behind_the_first_token_only_are_told_apart() -> None:
    def late(weights: Weights, seed: int) -> list[tuple[object, list[int]]]:
        return [(name, [0, 0, *ids]) for name, ids in written(weights, seed)]

    assert not compare_laws(late(FAIR, 1), late(UNFAIR, 2)).lossless


def test_it_says_what_it_would_have_found_and_finds_more_with_more_texts() -> None:
    few, many = (compare_laws(written(FAIR, 1, n), written(FAIR, 2, n)).smallest_favour for n in (80, 800))
    assert many is not None
    assert few is None or many < few


def test_the_same_texts_on_both_sides_are_no_difference() -> None:
    assert compare_laws(written(FAIR, 1), written(FAIR, 1)).p_value == 1.0


def test_without_texts_there_is_nothing_to_compare() -> None:
    with pytest.raises(SamplingError, match="nothing to compare"):
        compare_laws([], written(FAIR, 1))
