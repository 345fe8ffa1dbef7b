"""Constraints: legal at every place of every block, and the ids of plain constrained decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash2_core import Completion, Drafter, SamplingParams, TransformersEngine
from dflash2_core.sampling import LogitsProcessor
from dflash2_core.sampling.constraints import AfterToken
from dflash2_core.transformers_engine import Target, judge
from tests.core.toys import EOS, oracle, random_drafter, toy_target
from tests.core.transformers_engine.conftest import random_prompt

FITS = {"num_target_layers": 3, "target_layer_ids": (1,)}
PROMPT = random_prompt(9, seed=1)
THINK = 7


@dataclass(frozen=True)
class Dfa:
    """Three states over ids 0..6: an even id goes on to the next state, an odd one stays; EOS in the last, after 8 ids."""

    def legal(self, text: Sequence[int]) -> set[int]:
        state = sum(token % 2 == 0 for token in text) % 3
        return {0, 1, 2, 3, 4, 5, 6} - {state} | ({EOS} if state == 2 and len(text) >= 8 else set())

    def begin(self, prompt: Sequence[int]) -> LogitsProcessor:
        def process(history: Tensor, logits: Tensor) -> Tensor:
            assert history[: len(prompt)].tolist() == list(prompt)
            text = history[len(prompt) :].tolist()
            assert is_legal(self, text), "asked past the language: no draft that was forbidden may be judged further"
            allowed = torch.tensor(sorted(self.legal(text)))
            return torch.full_like(logits, -torch.inf).index_copy(0, allowed, logits[allowed])

        return process


def is_legal(dfa: Dfa, text: Sequence[int]) -> bool:
    return all(token in dfa.legal(text[:i]) for i, token in enumerate(text))


@pytest.fixture(scope="module")
def target() -> Target:
    """Of this seed: its constrained text goes on changing states, to the end of the language."""
    return toy_target(2, num_hidden_layers=3)


def write(target: Target, drafter: Drafter | None, params: SamplingParams, **options: int) -> Completion:
    (completion,) = TransformersEngine(target, drafter, **options).generate([PROMPT], params)  # type: ignore[arg-type]
    return completion


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_text_is_in_the_language(target: Target, temperature: float, seed: int) -> None:
    params = SamplingParams(constraint=Dfa(), max_new_tokens=30, temperature=temperature, seed=seed)
    for drafter in (None, random_drafter(seed=seed, **FITS)):
        completion = write(target, drafter, params)
        assert is_legal(Dfa(), completion.token_ids)
        assert len(completion.token_ids) > 8
        assert drafter is None or completion.stats.num_drafted > 0


@pytest.mark.parametrize("block_size", range(2, 9))
def test_greedy_ids_are_those_of_plain_constrained_decoding(target: Target, block_size: int) -> None:
    """Drafts of the unconstrained text are legal for a while and then not; those of the constrained text always, to its end."""
    params = SamplingParams(constraint=Dfa(), max_new_tokens=30)
    plain = write(target, None, params)
    assert plain.finish_reason == "stop"
    assert sum(token % 2 == 0 for token in plain.token_ids) > 8, "the states hardly change"
    free = write(target, None, SamplingParams(max_new_tokens=30, ignore_eos=True))
    assert not is_legal(Dfa(), free.token_ids)
    right = oracle(PROMPT, [*plain.token_ids, 1, 1, 1, 1, 1, 1, 1], **FITS)
    for drafter in (right, oracle(PROMPT, free.token_ids, **FITS), random_drafter(seed=1, **FITS)):
        completion = write(target, drafter, params, block_size=block_size)
        assert completion.token_ids == plain.token_ids
        assert completion.finish_reason == plain.finish_reason
    assert write(target, right, params, block_size=block_size).stats.num_accepted > 8


@pytest.mark.parametrize("at", range(1, 17))
def test_a_constraint_that_begins_after_thinking_leaves_the_thoughts_alone(target: Target, at: int) -> None:
    """The end of thinking at each place of a block: bias forces it there."""

    def thinks_until(history: Tensor, logits: Tensor) -> Tensor:
        logits = logits.clone()
        position = len(history) - len(PROMPT)
        logits[THINK] = 1e4 if position == at else -1e4
        return logits

    params = SamplingParams(
        constraint=AfterToken(THINK, Dfa()), logits_processor=thinks_until, max_new_tokens=30, ignore_eos=True
    )
    plain = write(target, None, params)
    thoughts, text = plain.token_ids[:at], plain.token_ids[at + 1 :]
    assert plain.token_ids[at] == THINK
    assert is_legal(Dfa(), text)
    assert len(text) > 8
    assert not is_legal(Dfa(), thoughts) or at < 4, "thoughts that happen to be legal show nothing"
    for drafter in (oracle(PROMPT, plain.token_ids, **FITS), random_drafter(seed=1, **FITS)):
        completion = write(target, drafter, params)
        assert completion.token_ids == plain.token_ids
        assert completion.stats.num_drafted > 0


def test_each_of_n_completions_and_each_row_of_a_batch_has_a_processor_of_its_own(target: Target) -> None:
    params = SamplingParams(
        constraint=AfterToken(3, Dfa()), max_new_tokens=30, temperature=1.0, seed=5, n=4, ignore_eos=True, logit_bias={3: 4.0}
    )
    drafter = random_drafter(seed=1, **FITS)
    alone = TransformersEngine(target, drafter).generate([PROMPT], params)
    together = TransformersEngine(target, drafter, max_batch_size=4).generate([PROMPT], params)
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    begun = [c.token_ids[c.token_ids.index(3) + 1 :] for c in alone if 3 in c.token_ids]
    assert begun
    assert all(is_legal(Dfa(), text) for text in begun)


def judged_by_the_blocks_first_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of a block is shown what was committed before it."""
    rewrite = judge.processed_logits

    def frozen(logits: Tensor, params: Sequence[SamplingParams], **history: Any) -> Tensor:
        none = {"drafts": torch.zeros(len(params), 0, dtype=torch.int64), "lengths": torch.zeros(len(params)).long()}
        return torch.cat([rewrite(row[:, None], params, **(history | none)) for row in logits.unbind(1)], dim=1)

    monkeypatch.setattr(judge, "processed_logits", frozen)


@pytest.mark.parametrize(
    ("check", "at"),
    [
        (test_greedy_ids_are_those_of_plain_constrained_decoding, 8),
        (test_a_constraint_that_begins_after_thinking_leaves_the_thoughts_alone, 9),
    ],
)
def test_a_constraint_shown_no_draft_of_the_block_is_caught(
    check: Callable[[Target, int], None], at: int, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_by_the_blocks_first_history(monkeypatch)
    with pytest.raises(AssertionError):
        check(target, at)


class FromTheStart(AfterToken):
    def begin(self, prompt: Sequence[int]) -> LogitsProcessor:
        return self.constraint.begin(prompt)


class Never(AfterToken):
    def begin(self, prompt: Sequence[int]) -> LogitsProcessor:
        return lambda history, logits: logits


class OnceForAll(AfterToken):
    """Begins with the first end of thinking it is shown, be it of a draft that is then rejected."""

    def begin(self, prompt: Sequence[int]) -> LogitsProcessor:
        begun: list[LogitsProcessor] = []

        def process(history: Tensor, logits: Tensor) -> Tensor:
            text = history[len(prompt) :].tolist()
            if not begun and self.token_id in text:
                begun.append(self.constraint.begin([*prompt, *text[: text.index(self.token_id) + 1]]))
            return begun[0](history, logits) if begun else logits

        return process


@pytest.mark.parametrize("fault", [FromTheStart, Never])
def test_a_constraint_that_begins_elsewhere_is_caught(
    fault: type[AfterToken], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "AfterToken", fault)
    with pytest.raises(AssertionError):
        test_a_constraint_that_begins_after_thinking_leaves_the_thoughts_alone(target, 9)


def assert_a_rejected_end_of_thinking_begins_nothing(target: Target, after: type[AfterToken]) -> None:
    """Drafts that end the thoughts too early are rejected; what follows is thought, and freely."""
    free = write(target, None, SamplingParams(max_new_tokens=24, ignore_eos=True, logit_bias={THINK: -1e6})).token_ids
    params = SamplingParams(max_new_tokens=24, ignore_eos=True, logit_bias={THINK: -1e5}, constraint=after(THINK, Dfa()))
    early = oracle(PROMPT, [THINK if i % 5 == 4 else token for i, token in enumerate(free)], **FITS)
    completion = write(target, early, params)
    assert completion.token_ids == free
    assert completion.stats.num_drafted > completion.stats.num_accepted > 0


def test_an_end_of_thinking_that_was_rejected_begins_nothing(target: Target) -> None:
    assert_a_rejected_end_of_thinking_begins_nothing(target, AfterToken)


def test_a_constraint_that_a_rejected_draft_begins_is_caught(target: Target) -> None:
    with pytest.raises(AssertionError):
        assert_a_rejected_end_of_thinking_begins_nothing(target, OnceForAll)
