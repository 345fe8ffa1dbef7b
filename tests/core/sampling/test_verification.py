"""Which drafts stand and what follows them, on given logits and laws: ties, padding, mixed rows, broken rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash2_core.proposal import Proposal, Verdict
from dflash2_core.sampling import BROKEN, RandomStreams, draw, verification, verify_greedy, verify_sampled

NAN, INF = math.nan, math.inf
V, L = 5, 3


def greedy_by_hand(drafts: list[int], logits: list[list[float]]) -> tuple[int, int]:
    for n, draft in enumerate(drafts):
        best = logits[n].index(max(logits[n]))
        if draft != best:
            return n, best
    return len(drafts), logits[len(drafts)].index(max(logits[len(drafts)]))


@st.composite
def greedy_batches(draw_value) -> tuple[list[list[int]], Tensor]:
    """Ragged drafts that often stand, and logits with many ties."""
    drafts, rows = [], []
    for _ in range(draw_value(st.integers(1, 4))):
        logits = draw_value(
            st.lists(st.lists(st.sampled_from([0.0, 1.0, 1.0078125]), min_size=V, max_size=V), min_size=L + 1, max_size=L + 1)
        )
        right = [row.index(max(row)) for row in logits]
        length = draw_value(st.integers(0, L))
        drafts.append([draw_value(st.sampled_from([right[i]] * 3 + [0, 4])) for i in range(length)])
        rows.append(logits)
    return drafts, torch.tensor(rows)


def padded(drafts: list[list[int]]) -> Proposal:
    tokens = torch.tensor([row + [-1] * (L - len(row)) for row in drafts])
    return Proposal(tokens=tokens, lengths=torch.tensor([len(row) for row in drafts]))


def poisoned(rows: Tensor, lengths: Tensor) -> Tensor:
    """NaN wherever nothing must be read."""
    return rows.masked_fill((torch.arange(L + 1) > lengths[:, None])[..., None], NAN)


@settings(max_examples=40)
@given(greedy_batches(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_greedy_verdicts_are_those_of_reading_row_by_row(batch, dtype: torch.dtype) -> None:
    drafts, logits = batch
    proposal = padded(drafts)
    verdict = verify_greedy(proposal, poisoned(logits, proposal.lengths).to(dtype))
    by_hand = [greedy_by_hand(row, logits[b].tolist()) for b, row in enumerate(drafts)]
    assert list(zip(verdict.num_accepted.tolist(), verdict.next_token.tolist(), strict=True)) == by_hand


@settings(max_examples=40)
@given(greedy_batches())
def test_one_hot_rows_in_a_sampled_batch_get_their_greedy_verdict(batch) -> None:
    drafts, logits = batch
    proposal = padded(drafts)
    p = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    greedy = verify_greedy(proposal, logits)
    sampled = verify_sampled(proposal, poisoned(p, proposal.lengths), RandomStreams(3), torch.arange(len(drafts)) * 100)
    assert torch.equal(sampled.num_accepted, greedy.num_accepted)
    assert torch.equal(sampled.next_token, greedy.next_token)


def test_logits_one_ulp_apart_are_no_tie() -> None:
    close = torch.tensor([1.0, 1.0, 1.0])
    close[2] = torch.nextafter(close[2], torch.tensor(2.0))
    logits = torch.stack([close, torch.ones(3)])[None]
    verdict = verify_greedy(Proposal(tokens=torch.tensor([[2]]), lengths=torch.tensor([1])), logits)
    assert (verdict.num_accepted.item(), verdict.next_token.item()) == (1, 0)


def test_a_draft_on_the_higher_of_two_tied_ids_does_not_stand() -> None:
    logits = torch.tensor([[[0.0, 2.0, 2.0], [5.0, 0.0, 0.0]]], dtype=torch.bfloat16)
    verdict = verify_greedy(Proposal(tokens=torch.tensor([[2]]), lengths=torch.tensor([1])), logits)
    assert (verdict.num_accepted.item(), verdict.next_token.item()) == (0, 1)


def random_batch(B: int, kind: str) -> tuple[Proposal, Tensor]:
    generator = torch.Generator().manual_seed(B)
    p = torch.randn(B, L + 1, V, generator=generator).double().softmax(-1)
    lengths = torch.arange(B) % (L + 1)
    past = torch.arange(L) >= lengths[:, None]
    candidates = torch.stack([torch.randperm(V, generator=generator)[:3] for _ in range(B * L)]).view(B, L, 3)
    q = torch.randn(B, L, 3 if kind == "candidates" else V, generator=generator).double().softmax(-1)
    chosen = torch.randint(q.shape[-1], (B, L), generator=generator)
    tokens = candidates.gather(-1, chosen[..., None])[..., 0] if kind == "candidates" else chosen
    tokens, q = tokens.masked_fill(past, -1), q.masked_fill(past[..., None], NAN)
    proposal = Proposal(
        tokens=tokens,
        lengths=lengths,
        candidates=candidates.masked_fill(past[..., None], -1) if kind == "candidates" else None,
        probs=None if kind == "argmax" else q,
    )
    return proposal, poisoned(p, lengths)


def row_of(proposal: Proposal, b: int, width: int) -> Proposal:
    return Proposal(
        tokens=proposal.tokens[b : b + 1, :width],
        lengths=proposal.lengths[b : b + 1],
        candidates=None if proposal.candidates is None else proposal.candidates[b : b + 1, :width],
        probs=None if proposal.probs is None else proposal.probs[b : b + 1, :width],
    )


@pytest.mark.parametrize("kind", ["candidates", "full", "argmax"])
def test_a_row_of_a_ragged_batch_gets_the_verdict_it_gets_alone(kind: str) -> None:
    proposal, p = random_batch(48, kind)
    seeds, positions = torch.arange(48), torch.arange(48) * 7
    together = verify_sampled(proposal, p, RandomStreams(seeds), positions)
    assert set(together.num_accepted.tolist()) == set(range(L + 1))
    for b in range(48):
        width = int(proposal.lengths[b])
        alone = verify_sampled(
            row_of(proposal, b, width), p[b : b + 1, : width + 1], RandomStreams(seeds[b : b + 1]), positions[b : b + 1]
        )
        assert alone.num_accepted.item() == together.num_accepted[b]
        assert alone.next_token.item() == together.next_token[b]
        assert 0 <= alone.next_token < V


def test_a_draft_without_probability_never_stands_even_on_a_draw_of_zero() -> None:
    class Zero(RandomStreams):
        def uniform(self, positions: Tensor, purpose: str) -> Tensor:
            return torch.zeros(positions.shape).double()

    p = torch.tensor([[[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]])
    for probs in (None, torch.tensor([[[1.0, 0.0, 0.0]]])):
        proposal = Proposal(tokens=torch.tensor([[0]]), lengths=torch.tensor([1]), probs=probs)
        verdict = verify_sampled(proposal, p, Zero(0), torch.tensor([4]))
        assert (verdict.num_accepted.item(), verdict.next_token.item()) == (0, 1)


def test_a_rejection_that_leaves_no_residual_draws_from_p() -> None:
    """p and q agree but for rounding: q above p everywhere."""

    class Highest(RandomStreams):
        def uniform(self, positions: Tensor, purpose: str) -> Tensor:
            return torch.full(positions.shape, 1 - 2.0**-53, dtype=torch.float64)

    p = torch.tensor([[[0.25, 0.75 - 1e-9, 0.0]] * 2], dtype=torch.float64)
    q = torch.tensor([[[0.25 + 1e-9, 0.75, 0.0]]], dtype=torch.float64)
    proposal = Proposal(tokens=torch.tensor([[0]]), lengths=torch.tensor([1]), probs=q)
    verdict = verify_sampled(proposal, p, Highest(0), torch.tensor([4]))
    assert (verdict.num_accepted.item(), verdict.next_token.item()) == (0, 1)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_broken_logits_end_a_greedy_run_with_no_id(value: float) -> None:
    logits = torch.zeros(2, 3, 4)
    logits[0, 1] = value
    verdict = verify_greedy(Proposal(tokens=torch.zeros(2, 2).long(), lengths=torch.tensor([2, 2])), logits)
    assert verdict.num_accepted.tolist() == [1, 2]
    assert verdict.next_token.tolist() == [BROKEN, 0]


@pytest.mark.parametrize("row", [[NAN] * 4, [0.0] * 4, [0.5, 0.25, 0.25, NAN], [NAN, 0.5, 0.25, 0.25]])
def test_a_broken_law_ends_a_sampled_run_with_no_id(row: list[float]) -> None:
    p = torch.zeros(2, 3, 4)
    p[..., 0] = 1
    p[0, 1] = torch.tensor(row)
    proposal = Proposal(tokens=torch.tensor([[0, 3]] * 2), lengths=torch.tensor([2, 2]))
    verdict = verify_sampled(proposal, p, RandomStreams(1), torch.tensor([0, 0]))
    assert verdict.num_accepted.tolist() == [1, 1]
    assert verdict.next_token.tolist() == [BROKEN, 0]


SPARSE = st.lists(st.sampled_from([0.0, 1e-300, 0.1, 0.3, 1.0, 7.0]), min_size=1, max_size=12).filter(any)


@given(SPARSE, st.floats(0, 1 - 2**-53) | st.sampled_from([0.0, 1 - 2.0**-53, 1 - 2.0**-52]))
def test_an_id_without_probability_is_never_drawn(weights: list[float], u: float) -> None:
    p = torch.tensor([weights], dtype=torch.float64)
    drawn = draw(p, torch.tensor([u], dtype=torch.float64)).item()
    assert drawn >= 0
    assert weights[drawn] > 0
    low, high = p[0, :drawn].sum() / p.sum(), p[0, : drawn + 1].sum() / p.sum()
    assert low - 1e-12 <= u <= high + 1e-12


@pytest.fixture
def sums_that_creep(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Accelerators add in blocks, so that a sum may move by an ulp where nothing was added. -> p [1, 5]"""
    honest, ulp = Tensor.cumsum, 2.0**-52
    creep = torch.tensor([0.0, ulp, 0.0, -ulp, 2 * ulp], dtype=torch.float64)
    monkeypatch.setattr(Tensor, "cumsum", lambda x, *args, **options: honest(x, *args, **options) + creep)
    return torch.tensor([[0.5, 0.0, 0.5, 0.0, 0.0]], dtype=torch.float64)


EDGES = [0.0, 0.5, 0.5 + 2.0**-52, 1 - 2.0**-53, 1.0]


@pytest.mark.parametrize("u", EDGES)
def test_no_rounding_of_a_sum_draws_an_impossible_id(sums_that_creep: Tensor, u: float) -> None:
    assert draw(sums_that_creep, torch.tensor([u], dtype=torch.float64)).item() == (0 if u < 0.5 else 2)


def test_a_search_in_the_plain_sums_is_seen(sums_that_creep: Tensor) -> None:
    sums = sums_that_creep.cumsum(-1)
    found = torch.searchsorted(sums, sums[:, -1:] * torch.tensor(EDGES, dtype=torch.float64), right=True)
    assert not set(found[0].tolist()) <= {0, 2}


def test_draw_keeps_every_leading_dimension() -> None:
    p = torch.rand(2, 3, 4, 5)
    ids = draw(p, torch.rand(2, 3, 4).double())
    assert ids.shape == (2, 3, 4)
    assert ids.dtype == torch.int64


@pytest.mark.parametrize("width", [0, 2])
def test_an_empty_batch_has_an_empty_verdict(width: int) -> None:
    proposal = Proposal(tokens=torch.empty(0, width).long(), lengths=torch.empty(0).long())
    none = torch.empty(0).long()
    for verdict in (
        verify_greedy(proposal, torch.empty(0, width + 1, V)),
        verify_sampled(proposal, torch.empty(0, width + 1, V), RandomStreams(none), none),
    ):
        assert isinstance(verdict, Verdict)
        assert verdict.num_accepted.shape == verdict.next_token.shape == (0,)


def on(device: str, proposal: Proposal) -> Proposal:
    return Proposal(**{name: None if x is None else x.to(device) for name, x in vars(proposal).items()})


@pytest.mark.parametrize("kind", ["candidates", "full", "argmax"])
def test_the_host_never_waits_for_an_accelerator(kind: str) -> None:
    """On the meta device tensors have no data: whatever would read a value on the host raises."""
    proposal, p = random_batch(8, kind)
    proposal, p, rows = on("meta", proposal), p.to("meta"), torch.arange(8, device="meta")
    for verdict in (verify_greedy(proposal, p), verify_sampled(proposal, p, RandomStreams(rows), rows)):
        assert verdict.next_token.is_meta
    with pytest.raises(RuntimeError, match="meta tensors"):
        bool(verdict.num_accepted.any())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["candidates", "full", "argmax"])
def test_an_accelerator_gives_the_verdicts_of_the_host_and_is_not_waited_for(kind: str) -> None:
    proposal, p = random_batch(48, kind)
    seeds, positions = torch.arange(48), torch.arange(48) * 7
    host = verify_sampled(proposal, p, RandomStreams(seeds), positions)
    proposal, p, streams, here = on("cuda", proposal), p.cuda(), RandomStreams(seeds.cuda()), positions.cuda()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        device = verify_sampled(proposal, p, streams, here)
        verify_greedy(proposal, p)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    mixed = verify_sampled(proposal, p, RandomStreams(seeds), positions)
    for verdict in (device, mixed):
        assert verdict.num_accepted.cpu().equal(host.num_accepted)
        assert verdict.next_token.cpu().equal(host.next_token)


# Faults put back, seen by the tests above.


def test_an_argmax_that_takes_the_highest_of_tied_ids_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Tensor.max
    monkeypatch.setattr(Tensor, "max", lambda x, *a: (honest(x, *a).values, x.shape[-1] - 1 - honest(x.flip(-1), *a).indices))
    with pytest.raises(AssertionError):
        test_a_draft_on_the_higher_of_two_tied_ids_does_not_stand()


def test_reading_past_a_rows_length_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_accepted_run", lambda accepted, lengths: accepted.long().cumprod(-1).sum(-1))
    proposal, p = random_batch(48, "argmax")
    careless = verify_sampled(proposal, p.nan_to_num(0.9), RandomStreams(torch.arange(48)), torch.arange(48))
    assert (careless.num_accepted > proposal.lengths).any()
