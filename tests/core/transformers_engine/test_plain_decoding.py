"""Without a drafter the loop is plain decoding: what Hugging Face's own `generate` writes, for every kind of target."""

import pytest
import torch

from dflash2_core import TransformersEngine
from dflash2_core.transformers_engine import Target
from dflash2_core.transformers_engine.cache import RollbackLayer
from tests.core.toys import EOS, VOCABULARY, oracle, random_drafter
from tests.core.transformers_engine.conftest import complete, random_prompt
from tests.core.transformers_engine.kinds import KINDS, target_of

LENGTHS = (1, 2, 8, 9, 30)
NEW = 20


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest) -> Target:
    return target_of(request.param)


def hugging_face(target: Target, prompt: list[int], **options: object) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": NEW, "eos_token_id": None, "do_sample": False} | options
    output = target.model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return output[0, len(prompt) :].tolist()


def test_it_equals_generate(target: Target) -> None:
    plain = TransformersEngine(target)
    for length in LENGTHS:
        prompt = random_prompt(length, seed=length)
        completion = complete(plain, prompt, max_new_tokens=NEW)
        assert completion.token_ids == hugging_face(target, prompt)
        assert completion.finish_reason == "length"
        assert completion.num_prompt_tokens == length
        assert completion.stats.num_drafted == 0


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_it_equals_generate_with_a_repetition_penalty(penalty: float, target: Target) -> None:
    changed = 0
    for length in (2, 9):
        prompt = random_prompt(length, seed=length)
        expected = hugging_face(target, prompt, repetition_penalty=penalty)
        completion = complete(TransformersEngine(target), prompt, max_new_tokens=NEW, repetition_penalty=penalty)
        assert completion.token_ids == expected
        changed += expected != hugging_face(target, prompt)
    assert changed or penalty < 1, "the penalty changed nothing: the test proves nothing"


def test_it_ends_where_generate_ends(target: Target) -> None:
    prompt = random_prompt(9, seed=9)
    text = hugging_face(target, prompt)
    for at in (0, 5, NEW - 1):
        ends = text[at]
        expected = hugging_face(target, prompt, eos_token_id=ends)
        completion = complete(TransformersEngine(target), prompt, max_new_tokens=NEW, stop_token_ids=[ends])
        assert completion.token_ids == expected
        assert completion.finish_reason == "stop"


def test_it_ends_at_the_targets_own_end_of_sequence(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = random_prompt(9, seed=9)
    text = hugging_face(target, prompt)
    monkeypatch.setattr(target.model.generation_config, "eos_token_id", [text[4], EOS])
    completion = complete(TransformersEngine(target), prompt, max_new_tokens=NEW, ignore_eos=False)
    assert completion.token_ids == text[: text.index(text[4]) + 1]
    assert completion.token_ids == hugging_face(target, prompt, eos_token_id=[text[4], EOS])
    assert completion.finish_reason == "stop"


def test_drafting_changes_no_id_on_any_kind_of_target(target: Target) -> None:
    """Blocks and rollbacks across the edge of the target's own sliding window among them."""
    accepted = 0
    for length in LENGTHS[::2]:
        prompt = random_prompt(length, seed=length)
        text = hugging_face(target, prompt)
        for drafter in (random_drafter(seed=3), oracle(prompt, text)):
            completion = complete(TransformersEngine(target, drafter), prompt, max_new_tokens=NEW)
            assert completion.token_ids == text
            assert completion.stats.num_drafted > 0
            accepted += completion.stats.num_accepted
        half = oracle(prompt, text)
        half.script = {at: token if at % 3 else (token + 1) % VOCABULARY for at, token in half.script.items()}
        assert complete(TransformersEngine(target, half), prompt, max_new_tokens=NEW).token_ids == text
    assert accepted >= len(LENGTHS[::2]) * (NEW - 4)


def test_a_sliding_window_that_forgets_what_a_rollback_needs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant keeps only the window's positions: a rejected block has then pushed out what comes back into sight."""
    sliding = target_of("Mistral, sliding")
    prompt = random_prompt(30, seed=30)
    text = hugging_face(sliding, prompt)
    update = RollbackLayer.update

    def forgets(self: RollbackLayer, *states: torch.Tensor, **rest: object) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = update(self, *states, **rest)
        self.keys[..., : max(0, self._cache.place.end - 8), :] = 0
        return keys, values

    wrong = oracle(prompt, [(token + 1) % VOCABULARY for token in text])
    assert complete(TransformersEngine(sliding, wrong), prompt, max_new_tokens=NEW).token_ids == text
    monkeypatch.setattr(RollbackLayer, "update", forgets)
    assert complete(TransformersEngine(sliding, wrong), prompt, max_new_tokens=NEW).token_ids != text
