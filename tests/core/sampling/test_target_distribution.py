"""p is what plain decoding samples from: filters in their order, ties by the lowest id, each row on its own."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash2_core.errors import SamplingError
from dflash2_core.sampling import SamplingParams, distribution, target_distribution

INF, NAN = math.inf, math.nan


def distribution_of(logits: Tensor, *params: SamplingParams, lengths: Tensor | None = None) -> Tensor:
    """logits [B, R, V], without history"""
    B, R, _ = logits.shape
    rows = list(params) * (B // len(params))
    drafts = torch.zeros(B, R - 1, dtype=torch.int64)
    return target_distribution(logits, rows, prompts=[[]] * B, outputs=[[]] * B, drafts=drafts, lengths=lengths)


def one_row(logits: list[float], **options: object) -> list[float]:
    return distribution_of(torch.tensor([[logits]], dtype=torch.float64), SamplingParams(**options))[0, 0].tolist()


def spelled_out(logits: list[float], params: SamplingParams) -> list[float]:
    """One row, id by id, in the order of the docstring."""
    V = len(logits)
    order = sorted(range(V), key=lambda i: (-logits[i], i))
    if params.is_greedy:
        return [float(i == order[0]) for i in range(V)]
    weight = [math.exp((z - logits[order[0]]) / params.temperature) for z in logits]
    kept = [i for i in order if weight[i] >= params.min_p]
    kept = kept[: params.top_k or V]
    total, before, nucleus = math.fsum(weight[i] for i in kept), 0.0, []
    for i in kept:
        assume(params.top_p == 1 or not nucleus or abs(before - params.top_p * total) > 1e-9)
        if params.top_p == 1 or before < params.top_p * total:
            nucleus.append(i)
        before += weight[i]
    total = math.fsum(weight[i] for i in nucleus)
    return [weight[i] / total if i in nucleus else 0.0 for i in range(V)]


# Few distinct values, as bf16 has them: ties everywhere.
LOGITS = st.lists(st.sampled_from([-INF, -4.0, -1.0, 0.0, 0.5, 1.0, 2.5]), min_size=6, max_size=6).filter(
    lambda row: max(row) > -INF
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, 8),
    top_p=st.sampled_from([1e-4, 0.2, 0.55, 0.83, 0.97, 1.0]),
    min_p=st.sampled_from([0.0, 0.11, 0.47, 1.0]),
)


@settings(max_examples=50)
@given(st.lists(st.tuples(LOGITS, PARAMS), min_size=1, max_size=4))
def test_every_row_of_a_mixed_batch_is_what_its_options_spell_out(rows: list[tuple[list[float], SamplingParams]]) -> None:
    logits = torch.tensor([[row] for row, _ in rows], dtype=torch.float64)
    p = distribution_of(logits, *[params for _, params in rows])
    for b, (row, params) in enumerate(rows):
        assert p[b, 0].tolist() == pytest.approx(spelled_out(row, params), abs=1e-12)


@settings(max_examples=50)
@given(st.lists(st.tuples(LOGITS, PARAMS), min_size=2, max_size=5), st.sampled_from([torch.float32, torch.float64]))
def test_a_row_is_the_same_to_the_bit_alone_and_in_a_batch(rows, dtype: torch.dtype) -> None:
    logits = torch.tensor([[row, row[::-1]] for row, _ in rows], dtype=dtype)
    p = distribution_of(logits, *[params for _, params in rows])
    for b, (_, params) in enumerate(rows):
        assert torch.equal(p[b], distribution_of(logits[b : b + 1], params)[0])


@pytest.mark.parametrize("width", [8, 1024])
def test_a_nucleus_wider_than_the_first_look_is_found_all_the_same(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "_NUCLEUS_WIDTH", width)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 3000, generator=generator) * torch.tensor([0.1, 4.0, 12.0])[:, None, None]
    p = distribution_of(logits, SamplingParams(temperature=1.0, top_p=0.93))
    exact = logits.double().softmax(-1)
    for row, law in zip(p.flatten(0, 1), exact.flatten(0, 1), strict=True):
        best, ids = law.sort(descending=True, stable=True)
        size = int((best.cumsum(0) < 0.93).sum()) + 1
        assert set(row.nonzero()[:, 0].tolist()) == set(ids[:size].tolist())
        assert torch.allclose(row.double(), torch.where(row > 0, law, 0) / law[row > 0].sum(), atol=1e-6)


def test_filters_apply_in_the_stated_order() -> None:
    logits = [math.log(x) for x in (0.5, 0.3, 0.15, 0.05)]
    # top-k leaves .5 and .3; of their mass .5 is 62.5 %: top-p 0.6 sees that and keeps one.
    assert one_row(logits, temperature=1.0, top_k=2, top_p=0.6) == [1, 0, 0, 0]
    # min-p leaves .5 and .3 before top-p counts; after it, top-p 0.75 would have kept both of them.
    assert one_row(logits, temperature=1.0, min_p=0.5, top_p=0.62) == [1, 0, 0, 0]
    # min-p looks at the law after temperature: at 0.5 the second is 36 % of the first.
    assert one_row(logits, temperature=0.5, min_p=0.5) == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("options", "kept"),
    [({"top_k": 2}, [1, 2]), ({"top_k": 3}, [1, 2, 4]), ({"top_p": 0.5}, [1, 2]), ({"top_p": 0.51}, [1, 2, 4])],
)
def test_of_ids_tied_at_the_edge_the_lowest_stay(options: dict[str, float], kept: list[int]) -> None:
    p = one_row([-INF, 1.0, 1.0, -INF, 1.0, 1.0], temperature=1.0, **options)
    assert [i for i, x in enumerate(p) if x > 0] == kept
    assert p[kept[0]] == pytest.approx(1 / len(kept))


CERTAIN = [{"top_k": 1}, {"top_p": 1e-4}, {"min_p": 1.0}]


@pytest.mark.parametrize("options", CERTAIN)
@settings(max_examples=25)
@given(logits=LOGITS)
def test_a_filter_that_leaves_one_id_equals_greedy(options: dict[str, float], logits: list[float]) -> None:
    greedy = one_row(logits)
    assert greedy.index(1.0) == logits.index(max(logits))
    assert one_row(logits, temperature=1.0, **options) == greedy


@pytest.mark.parametrize("options", CERTAIN[:2])
def test_the_filters_themselves_leave_one_id(options: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SamplingParams, "is_greedy", property(lambda self: self.temperature == 0))
    assert one_row([0.0, 3.0, 3.0, 1.0], temperature=1.0, **options) == [0, 1, 0, 0]


def test_a_cut_by_value_that_keeps_ties_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SamplingParams, "is_greedy", property(lambda self: self.temperature == 0))
    monkeypatch.setattr(distribution, "_keep_best", lambda z, best, size: z.masked_fill(z < best.gather(-1, size - 1), -INF))
    for options in CERTAIN:
        assert one_row([0.0, 3.0, 3.0, 1.0], temperature=1.0, **options) != [0, 1, 0, 0]


def test_a_greedy_row_with_tied_maxima_is_itself_beside_a_sampled_row() -> None:
    logits = torch.tensor([[[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]]]).expand(2, -1, -1)
    p = distribution_of(logits, SamplingParams(), SamplingParams(temperature=1.0))
    assert p[0].tolist() == [[0, 1, 0], [1, 0, 0]]
    assert torch.equal(p[1], logits[1].softmax(-1))


def test_greedy_as_a_tiny_temperature_would_be_seen() -> None:
    """The fault: temperature 0 taken for 1e-6 shares the mass among tied maxima."""
    logits = torch.tensor([[[0.0, 2.0, 2.0]]])
    assert not torch.equal(distribution_of(logits, SamplingParams(temperature=1e-6)), distribution_of(logits, SamplingParams()))


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-3, 1e30, 1e300])
def test_no_temperature_overflows(temperature: float) -> None:
    logits = torch.tensor([[[-INF, -80.0, 100.0, 99.0, 100.0]]])
    p = distribution_of(logits, SamplingParams(temperature=temperature))[0, 0]
    expected = [0, 0, 0.5, 0, 0.5] if temperature < 1 else [0, 0.25, 0.25, 0.25, 0.25]
    assert p.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("given_dtype", "dtype"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.01}])
def test_p_is_float64_where_the_logits_are_and_float32_otherwise(given_dtype, dtype, options) -> None:
    logits = torch.randn(2, 3, 50).to(given_dtype)
    before = logits.clone()
    p = distribution_of(logits, SamplingParams(**options))
    assert p.dtype == dtype
    assert torch.equal(logits, before)
    assert torch.allclose(p.sum(-1), torch.ones(2, 3, dtype=dtype))


WAYS = [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}, {"temperature": 1.0, "top_p": 0.5, "min_p": 0.1}]
BROKEN_ROWS = [[NAN, 0.0, 1.0], [-INF] * 3, [0.0, INF, 1.0]]


@pytest.mark.parametrize("broken", BROKEN_ROWS)
@pytest.mark.parametrize("options", WAYS)
def test_an_anchor_without_a_distribution_is_an_error_that_names_the_row(broken, options) -> None:
    logits = torch.zeros(2, 3, 3)
    logits[1, 0] = torch.tensor(broken)
    with pytest.raises(SamplingError, match=r"Row 1 of the batch: the best of its 3 logits is (nan|-?inf), so there"):
        distribution_of(logits, SamplingParams(**options))


@pytest.mark.parametrize("broken", BROKEN_ROWS)
@pytest.mark.parametrize("options", WAYS)
def test_a_later_row_without_a_distribution_is_nan_and_no_error(broken, options) -> None:
    """Plain decoding may never come there."""
    logits = torch.zeros(2, 3, 3)
    logits[1, 2] = torch.tensor(broken)
    p = distribution_of(logits, SamplingParams(**options))
    assert p[1, 2].isnan().all()
    assert torch.equal(p[0], distribution_of(logits[:1], SamplingParams(**options))[0])
    assert torch.equal(p[1, :2], distribution_of(logits[1:, :2], SamplingParams(**options))[0])
