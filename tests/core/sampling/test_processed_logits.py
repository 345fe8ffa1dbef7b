"""Penalties, bias and processors see a history that grows token by token inside the block."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash2_core.errors import SamplingError
from dflash2_core.proposal import Proposal
from dflash2_core.sampling import (
    RandomStreams,
    SamplingParams,
    processed_logits,
    processing,
    target_distribution,
    verify_greedy,
    verify_sampled,
)

V = 7
IDS = st.lists(st.integers(0, V - 1), max_size=6)
PENALTY = st.sampled_from([0.0, 0.5, -1.25])


def no_id_four_times(history: Tensor, logits: Tensor) -> Tensor:
    return logits.masked_fill(history.bincount(minlength=V) >= 3, -torch.inf)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.7]),
    presence_penalty=PENALTY,
    frequency_penalty=PENALTY,
    logit_bias=st.none() | st.dictionaries(st.integers(0, V - 1), st.sampled_from([-torch.inf, -2.0, 1.5]), max_size=3),
    logits_processor=st.none() | st.just(lambda history, logits: logits * 0.5 + history.sum()),
)
ROW = st.tuples(PARAMS, IDS, IDS, IDS.map(lambda ids: ids[:4]))


def spelled_out(logits: Tensor, params: SamplingParams, prompt: list[int], output: list[int]) -> Tensor:
    """One row of logits [V], id by id, in the order of the docstring."""
    counts, rewritten = Counter(output), logits.clone()
    for i in range(V):
        z = logits[i].item() + (params.logit_bias or {}).get(i, 0.0)
        if i in prompt or i in output:
            z = z / params.repetition_penalty if z > 0 else z * params.repetition_penalty
        rewritten[i] = z - params.frequency_penalty * counts[i] - params.presence_penalty * (counts[i] > 0)
    if params.logits_processor is None:
        return rewritten
    return params.logits_processor(torch.tensor(prompt + output, dtype=torch.int64), rewritten)


@settings(max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=3), st.integers(0, 1000))
def test_a_ragged_block_is_judged_as_token_by_token_growth_would(rows, seed: int) -> None:
    params, prompts, outputs, drafts = (list(column) for column in zip(*rows, strict=True))
    L = max(len(ids) for ids in drafts)
    logits = torch.randn(len(rows), L + 1, V, generator=torch.Generator().manual_seed(seed)).double()
    block = processed_logits(logits, params, prompts=prompts, outputs=outputs, drafts=drafts)
    lengths = torch.tensor([len(ids) for ids in drafts])
    padded = torch.tensor([ids + [-1] * (L - len(ids)) for ids in drafts], dtype=torch.int64)
    tensors = {"prompts": [torch.tensor(ids) for ids in prompts], "outputs": [torch.tensor(ids) for ids in outputs]}
    again = processed_logits(logits, params, **tensors, drafts=padded, lengths=lengths)
    for b in range(len(rows)):
        for i in range(len(drafts[b]) + 1):
            reachable = all(block[b, j, drafts[b][j]] > -torch.inf for j in range(i))
            if not reachable and params[b].logits_processor is not None:
                continue
            expected = spelled_out(logits[b, i], params[b], prompts[b], outputs[b] + drafts[b][:i])
            assert torch.allclose(block[b, i], expected, atol=1e-12)
            assert torch.equal(again[b, i], block[b, i])
        assert torch.equal(again[b, len(drafts[b]) + 1 :], logits[b, len(drafts[b]) + 1 :])


def frozen_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the whole block is judged with the history at its start."""
    honest = processing._rewrite

    def rewrite(logits, params, prompt, output, drafts) -> None:
        for i in range(len(logits)):
            honest(logits[i : i + 1], params, prompt, output, drafts[:0])

    monkeypatch.setattr(processing, "_rewrite", rewrite)


LIKES_TO_REPEAT = 1.0 + torch.eye(V).double() * 2 + torch.arange(V) * 0.1

OPTIONS = {
    "repetition": {"repetition_penalty": 3.0},
    "presence": {"presence_penalty": 2.5},
    "frequency": {"frequency_penalty": 1.1},
    "processor": {"logits_processor": no_id_four_times},
    "all, and bad words": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.6,
        "logit_bias": {2: -torch.inf, 5: 0.7},
    },
}


def decode(params: SamplingParams, block: int, draft, prompt: tuple[int, ...] = (3, 1), count: int = 14) -> list[int]:
    """Greedy decoding of a target that wants to repeat, `block` drafts a cycle of draft(output) -> ids."""
    output, accepted = [4], 0
    while len(output) < count:
        drafts = draft(output)[:block]
        logits = LIKES_TO_REPEAT[torch.tensor([output[-1], *drafts])][None]
        tokens = torch.tensor([drafts], dtype=torch.int64).view(1, -1)
        judged = processed_logits(logits, [params], prompts=[prompt], outputs=[output], drafts=tokens)
        verdict = verify_greedy(Proposal(tokens=tokens, lengths=torch.tensor([len(drafts)])), judged)
        n = int(verdict.num_accepted)
        accepted += n
        output = [*output, *drafts[:n], int(verdict.next_token)]
    assert accepted > 0 or block == 0
    return output[:count]


def right_then_repeating(plain: list[int], output: list[int]) -> list[int]:
    """The next id, then the same again: what the penalties must stop inside the block."""
    return plain[len(output) : len(output) + 1] * 4


@pytest.mark.parametrize("name", OPTIONS)
def test_blocks_of_drafts_give_the_ids_of_plain_decoding(name: str) -> None:
    params = SamplingParams(**OPTIONS[name])
    plain = decode(params, 0, lambda output: [])
    assert len(set(plain)) > 2
    assert decode(params, 4, lambda output: plain[len(output) : len(output) + 4]) == plain
    assert decode(params, 4, lambda output: right_then_repeating(plain, output)) == plain


@pytest.mark.parametrize("name", OPTIONS)
def test_a_history_frozen_at_the_blocks_start_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(**OPTIONS[name])
    plain = decode(params, 0, lambda output: [])
    frozen_history(monkeypatch)
    assert decode(params, 4, lambda output: right_then_repeating(plain, output)) != plain


def test_logits_that_nobody_asked_to_change_are_not_even_copied() -> None:
    logits = torch.randn(2, 3, V, dtype=torch.bfloat16)
    history = {"prompts": [[1], [2]], "outputs": [[3], [4]], "drafts": torch.tensor([[1, 1], [2, 2]])}
    assert processed_logits(logits, [SamplingParams(), SamplingParams(temperature=1.0)], **history) is logits


def test_rows_without_options_stay_as_they_are_beside_one_with() -> None:
    logits = torch.randn(2, 3, V, dtype=torch.bfloat16)
    before = logits.clone()
    history = {"prompts": [[1], [2]], "outputs": [[3], [4]], "drafts": torch.tensor([[1, 1], [2, 2]])}
    rewritten = processed_logits(logits, [SamplingParams(), SamplingParams(presence_penalty=1.0)], **history)
    assert rewritten.dtype == torch.float32
    assert torch.equal(rewritten[0], before[0].float())
    assert not torch.equal(rewritten[1], before[1].float())
    assert torch.equal(logits, before)


def test_a_processor_sees_each_prefix_once_and_nothing_past_the_length() -> None:
    seen: list[list[int]] = []

    def watch(history: Tensor, logits: Tensor) -> Tensor:
        seen.append(history.tolist())
        return logits

    params = [SamplingParams(logits_processor=watch)] * 2
    drafts, lengths = torch.tensor([[5, 6, 0], [1, -1, -1]]), torch.tensor([3, 1])
    processed_logits(torch.zeros(2, 4, V), params, prompts=[[1, 2], [3]], outputs=[[3], [4]], drafts=drafts, lengths=lengths)
    assert seen == [[1, 2, 3], [1, 2, 3, 5], [1, 2, 3, 5, 6], [1, 2, 3, 5, 6, 0], [3, 4], [3, 4, 1]]


def test_a_grammar_is_never_shown_what_follows_a_draft_it_forbids() -> None:
    """A toy language: ascending ids. It raises on a history outside of it."""

    def ascending(history: Tensor, logits: Tensor) -> Tensor:
        assert history.tolist() == sorted(history.tolist())
        logits[: history[-1]] = -torch.inf
        return logits

    params = SamplingParams(logits_processor=ascending, temperature=1.0)
    drafts = torch.tensor([[2, 3, 1, 6]])
    p = target_distribution(torch.zeros(1, 5, V), [params], prompts=[[0]], outputs=[[1]], drafts=drafts)
    assert (p[0, 0] > 0).nonzero().flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert p[0, 2, 1] == 0


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}])
def test_a_dead_end_that_only_a_rejected_draft_leads_to_is_no_error(options: dict[str, float]) -> None:
    """After a 6 the toy language allows nothing; the target would not have gone there."""

    def dead_after_six(history: Tensor, logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf) if history[-1] == 6 else logits

    params = SamplingParams(logits_processor=dead_after_six, **options)
    logits = torch.zeros(1, 2, V, dtype=torch.float64)
    logits[..., 6] = -1e3
    history = {"prompts": [[0]], "outputs": [[1]], "drafts": torch.tensor([[6]])}
    p = target_distribution(logits, [params], **history)
    proposal = Proposal(tokens=torch.tensor([[6]]), lengths=torch.tensor([1]))
    verdict = verify_sampled(proposal, p, RandomStreams(0), torch.tensor([1]))
    assert verdict.num_accepted.item() == 0
    assert verdict.next_token.item() in range(6)


@pytest.mark.parametrize("answer", [None, torch.zeros(V + 1), 3.0])
def test_a_processor_that_returns_no_row_of_logits_is_refused(answer: object) -> None:
    params = SamplingParams(logits_processor=lambda history, logits: answer)
    with pytest.raises(SamplingError, match="logits processor returned"):
        processed_logits(torch.zeros(1, 1, V), [params], prompts=[[0]], outputs=[[1]], drafts=[[]])


def test_a_bias_on_an_id_that_is_not_there_is_refused() -> None:
    with pytest.raises(SamplingError, match=r"logit_bias names the id 7; the target's ids are 0\.\.6"):
        processed_logits(torch.zeros(1, 1, V), [SamplingParams(logit_bias={V: 1.0})], prompts=[[0]], outputs=[[1]], drafts=[[]])


def test_a_row_without_its_params_is_refused() -> None:
    with pytest.raises(SamplingError, match="2 rows of logits came with 1 params"):
        processed_logits(torch.zeros(2, 1, V), [SamplingParams()], prompts=[[0]] * 2, outputs=[[1]] * 2, drafts=[[]] * 2)


def test_history_ids_outside_the_vocabulary_are_nobodys_repetition() -> None:
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0)
    logits = torch.ones(1, 1, V)
    rewritten = processed_logits(logits, [params], prompts=[[V + 3, -1, 2]], outputs=[[1]], drafts=[[]])
    assert rewritten[0, 0].tolist() == [1, -0.5, 0.5, 1, 1, 1, 1]
