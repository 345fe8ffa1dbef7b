"""At temperature 0 the engine writes, id for id, what the target writes alone: whatever the drafter, whatever the block."""

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash2_core import AcceptanceStats, Completion, Drafter, Proposal, SamplingParams, TransformersEngine, Verdict
from dflash2_core.transformers_engine import Target, judge
from dflash2_core.transformers_engine.cache import RollbackCache
from tests.core import toys
from tests.core.toys import VOCABULARY, ScriptedDrafter
from tests.core.transformers_engine.conftest import NEW, Trained, complete, random_prompt

BLOCKS = range(2, 9)
Written = list[tuple[list[int], list[int]]]

# Thousands of passes: three layers are enough to have a text of one's own, and one to tap.
toy_model, toy_target = (partial(make, num_hidden_layers=3) for make in (toys.toy_model, toys.toy_target))
drafter_config, random_drafter, oracle, always_wrong = (
    partial(make, **{"num_target_layers": 3, "target_layer_ids": (1,)})
    for make in (toys.drafter_config, toys.random_drafter, toys.oracle, toys.always_wrong)
)
TARGET = toy_target()


@pytest.fixture(scope="module")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="module")
def written(target: Target) -> Written:
    """56 prompts of 1 to 200 ids, and the NEW ids that the toy target writes alone after each."""
    prompts = [random_prompt(1 + 199 * i // 55, seed=i) for i in range(56)]
    return [(prompt, complete(TransformersEngine(target), prompt).token_ids) for prompt in prompts]


def scripted(prompt: list[int], text: list[int], right: list[bool]) -> ScriptedDrafter:
    """Drafts the target's own id where `right` says so, and another elsewhere."""
    drafter = ScriptedDrafter(drafter_config())
    drafter.script = {len(prompt) + i: token if right[i] else (token + 1) % VOCABULARY for i, token in enumerate(text)}
    return drafter


def cycles(right: list[bool], block_size: int) -> tuple[int, int, int]:
    """Target passes after the prefill, drafts made and drafts kept, for a text of which the drafter knows these ids."""
    done, passes, drafted, kept = 1, 0, 0, 0
    while done < len(right):
        asked = min(block_size - 1, len(right) - done - 1)
        run = next((k for k in range(asked) if not right[done + k]), asked)
        done, passes, drafted, kept = done + run + 1, passes + 1, drafted + asked, kept + run
    return passes, drafted, kept


def assert_identical(drafter: Drafter, target: Target, prompt: list[int], text: list[int], block_size: int) -> AcceptanceStats:
    completion = complete(TransformersEngine(target, drafter, block_size=block_size), prompt, max_new_tokens=len(text))
    assert completion.token_ids == text
    assert completion.finish_reason == "length"
    assert completion.stats.num_drafted > 0 or len(text) < 3
    return completion.stats


def block_of(i: int) -> int:
    return BLOCKS[i % len(BLOCKS)]


def test_the_prompts_and_texts_are_worth_comparing(written: Written) -> None:
    lengths = [len(prompt) for prompt, _ in written]
    assert (min(lengths), max(lengths)) == (1, 200)
    assert len(lengths) >= 56
    assert all(len(text) == NEW for _, text in written)
    assert len({tuple(text) for _, text in written}) == len(written)
    assert sum(len(set(text)) for _, text in written) / len(written) > 5, "the toy repeats one id: it proves nothing"


def test_with_a_random_drafter(target: Target, written: Written) -> None:
    drafter = random_drafter(seed=2, layer_windows=(12, 12))
    stats = [assert_identical(drafter, target, *pair, block_of(i)) for i, pair in enumerate(written)]
    total = AcceptanceStats.total(stats)
    assert 0 < total.num_accepted < total.num_drafted


def test_with_an_oracle_in_as_few_passes_as_there_can_be(target: Target, written: Written) -> None:
    for i, (prompt, text) in enumerate(written):
        stats = assert_identical(oracle(prompt, text), target, prompt, text, block_of(i))
        assert stats.num_target_passes == -(-(NEW - 1) // block_of(i))
        assert stats.num_accepted == stats.num_drafted


def test_with_a_drafter_that_is_always_wrong_in_one_pass_a_token(target: Target, written: Written) -> None:
    for i, (prompt, text) in enumerate(written):
        stats = assert_identical(always_wrong(prompt, text), target, prompt, text, block_of(i))
        assert stats.num_cycles == NEW - 2
        assert stats.skipped == {"last token of the budget": 1}
        assert stats.num_accepted == 0
        assert stats.mean_acceptance_length == 1.0


def test_with_a_drafter_that_is_partly_right(target: Target, written: Written) -> None:
    totals = []
    for i, (prompt, text) in enumerate(written):
        right = random.Random(i).choices((True, False), weights=(3, 1), k=NEW)
        stats = assert_identical(scripted(prompt, text, right), target, prompt, text, block_of(i))
        assert (stats.num_target_passes, stats.num_drafted, stats.num_accepted) == cycles(right, block_of(i))
        totals.append(stats)
    assert 1.5 < AcceptanceStats.total(totals).mean_acceptance_length < 5


@settings(max_examples=40)
@given(
    st.integers(1, 6),
    st.integers(0, 1000),
    st.integers(2, 8),
    st.lists(st.booleans(), min_size=1, max_size=20),
)
def test_any_mistakes_at_any_place_of_any_block(length: int, seed: int, block_size: int, right: list[bool]) -> None:
    prompt = random_prompt(length, seed)
    text = complete(TransformersEngine(TARGET), prompt, max_new_tokens=len(right)).token_ids
    stats = assert_identical(scripted(prompt, text, right), TARGET, prompt, text, block_size)
    assert (stats.num_target_passes, stats.num_drafted, stats.num_accepted) == cycles(right, block_size)


@pytest.mark.parametrize("version", [1, 2])
def test_with_random_drafters_of_both_versions_and_any_number_of_layers(version: int, target: Target, written: Written) -> None:
    for layers in (1, 3):
        drafter = random_drafter(seed=layers, version=version, num_hidden_layers=layers, layer_windows=(4,) * layers)
        for prompt, text in written[10:40:15]:
            assert_identical(drafter, target, prompt, text, 8)


def test_requests_one_after_the_other_do_not_touch_each_other(target: Target, written: Written) -> None:
    runner = TransformersEngine(target, random_drafter(seed=2, layer_windows=(12, 12)))
    for prompt, text in (written[50], written[0], written[50], written[20]):
        assert complete(runner, prompt).token_ids == text


def test_streams_that_take_turns_do_not_touch_each_other(target: Target, written: Written) -> None:
    """Two engines on one target, with different taps, and a plain one: each pass asks for its own."""
    engines = [
        TransformersEngine(target, random_drafter(seed=2, layer_windows=(12, 12))),
        TransformersEngine(target, random_drafter(seed=3, target_layer_ids=(1, 0))),
        TransformersEngine(target),
    ]
    alone = [complete(runner, written[5][0]) for runner in engines]
    params = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
    streams = [runner.stream(written[5][0], params) for runner in engines]
    completions: list[Completion | None] = [None] * 3
    while not all(completions):
        for i, stream in enumerate(streams):
            chunk = next(stream, None)
            if chunk is not None and chunk.completion is not None:
                completions[i] = chunk.completion
    for together, apart in zip(completions, alone, strict=True):
        assert together is not None
        assert together.token_ids == apart.token_ids == written[5][1]
        assert together.stats == apart.stats
    assert alone[0].stats.num_drafted > 0
    assert alone[1].stats.num_drafted > 0


def test_an_abandoned_stream_leaves_nothing_behind(target: Target, written: Written) -> None:
    runner = TransformersEngine(target, random_drafter(seed=2, layer_windows=(12, 12)))
    stream = runner.stream(written[30][0], SamplingParams(max_new_tokens=NEW, ignore_eos=True))
    next(stream)
    next(stream)
    stream.close()
    assert complete(runner, written[5][0]).token_ids == written[5][1]


def test_a_mask_that_the_target_writes_itself_stays_in_the_text(target: Target, written: Written) -> None:
    prompt, text = written[20]
    mask = max(text[1:], key=text.count)
    assert_identical(random_drafter(seed=2, mask_token_id=mask), target, prompt, text, 8)
    knowing = oracle(prompt, text, mask_token_id=mask)
    assert assert_identical(knowing, target, prompt, text, 8).num_target_passes == 3


def test_a_mask_that_is_taken_out_of_the_text_is_caught(
    target: Target, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant forbids the mask's id, as if it were never anything else."""
    text = written[20][1]
    mask = max(text[1:], key=text.count)
    forward = Target.forward

    def forbidding(self: Target, *asked: Any, **options: Any) -> Any:
        logits, taps = forward(self, *asked, **options)
        return logits.index_fill(-1, torch.tensor([mask]), -torch.inf), taps

    monkeypatch.setattr(Target, "forward", forbidding)
    with pytest.raises(AssertionError):
        test_a_mask_that_the_target_writes_itself_stays_in_the_text(target, written)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_that_only_pad_the_targets_head_are_never_written(temperature: float) -> None:
    """40 rows for 37 ids, and those past the vocabulary would always win."""
    model = toy_model()
    padding = torch.full((3, 16), 1e-3)
    model.lm_head.weight = torch.nn.Parameter(torch.cat((model.lm_head.weight.data, padding)))
    model.lm_head.register_forward_hook(lambda module, args, logits: logits + 100 * (torch.arange(40) >= VOCABULARY))
    padded = Target(model)
    options = {"temperature": temperature, "seed": 3}
    for drafter in (None, random_drafter(seed=2), random_drafter(seed=2, version=1)):
        completion = complete(TransformersEngine(padded, drafter), [1, 2, 3], **options)
        assert max(completion.token_ids) < VOCABULARY
        assert drafter is None or completion.stats.num_drafted > 0
        if temperature == 0:
            assert completion.token_ids == complete(TransformersEngine(toy_target()), [1, 2, 3]).token_ids


def test_padding_of_the_head_that_is_judged_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "vocab_size", 40)
    monkeypatch.setattr("dflash2_core.transformers_engine.engine.require_fit", lambda *_, **__: None)
    with pytest.raises((AssertionError, IndexError)):
        test_ids_that_only_pad_the_targets_head_are_never_written(0.0)


def accepts_one_more(proposal: Proposal, logits: Tensor) -> Verdict:
    verdict = verify(proposal, logits)
    n = torch.minimum(verdict.num_accepted + 1, proposal.lengths)
    return Verdict(num_accepted=n, next_token=logits.argmax(-1).gather(1, n[:, None])[:, 0])


def bonus_from_the_first_row(proposal: Proposal, logits: Tensor) -> Verdict:
    verdict = verify(proposal, logits)
    return Verdict(num_accepted=verdict.num_accepted, next_token=logits.argmax(-1)[:, 0])


def judged_by_the_row_before(proposal: Proposal, logits: Tensor) -> Verdict:
    return verify(proposal, logits.roll(1, dims=1))


def never_rolled_back(self: RollbackCache, length: int, row: int = 0) -> None:
    pass


def rolled_back_one_too_far(self: RollbackCache, length: int, row: int = 0) -> None:
    rollback(self, length - 1, row)


verify, rollback = judge.verify_greedy, RollbackCache.rollback


@pytest.mark.parametrize(
    ("place", "name", "mutant"),
    [
        (judge, "verify_greedy", accepts_one_more),
        (judge, "verify_greedy", bonus_from_the_first_row),
        (judge, "verify_greedy", judged_by_the_row_before),
        (RollbackCache, "rollback", never_rolled_back),
        (RollbackCache, "rollback", rolled_back_one_too_far),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_engine_that_is_not_lossless_is_caught(
    place: object, name: str, mutant: Callable[..., object], target: Target, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, text = written[20]
    drafter = scripted(prompt, text, [k % 4 != 1 for k in range(NEW)])
    assert_identical(drafter, target, prompt, text, 8)
    monkeypatch.setattr(place, name, mutant)
    with pytest.raises(AssertionError):
        assert_identical(drafter, target, prompt, text, 8)


def test_the_trained_pair_on_held_out_prompts(trained: Trained) -> None:
    plain = TransformersEngine(trained.target)
    by_block: dict[int, list[AcceptanceStats]] = {block_size: [] for block_size in BLOCKS}
    for i, prompt in enumerate(trained.prompts):
        text = complete(plain, prompt, max_new_tokens=16).token_ids
        by_block[block_of(i)].append(assert_identical(trained.drafter, trained.target, prompt, text, block_of(i)))
    assert len(trained.prompts) >= 200
    assert min(map(len, trained.prompts)) == 1
    assert max(map(len, trained.prompts)) > trained.drafter.config.layer_windows[0], "the ring must go round"
    totals = {block_size: AcceptanceStats.total(parts) for block_size, parts in by_block.items()}
    shown = json.dumps({block_size: round(total.mean_acceptance_length, 2) for block_size, total in totals.items()})
    assert totals[8].mean_acceptance_length > 2, shown
    for block_size, total in totals.items():
        assert 1.3 < total.mean_acceptance_length <= block_size, shown
        assert len(total.accepted_per_position) == block_size - 1


def test_the_trained_pair_over_longer_texts(trained: Trained) -> None:
    plain, parts = TransformersEngine(trained.target), []
    for prompt in trained.prompts[5::20]:
        text = complete(plain, prompt, max_new_tokens=64).token_ids
        parts.append(assert_identical(trained.drafter, trained.target, prompt, text, 8))
    assert AcceptanceStats.total(parts).mean_acceptance_length > 2, AcceptanceStats.total(parts)
