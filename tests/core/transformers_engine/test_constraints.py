"""Grammars and their like: legal at every place of every block, and the ids of plain constrained decoding."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
import xgrammar
from torch import Tensor

from dflash2_core import Completion, Drafter, SamplingParams, TransformersEngine
from dflash2_core.sampling import LogitsProcessor
from dflash2_core.sampling.constraints import AfterToken, Grammar
from dflash2_core.transformers_engine import Target
from tests.core.toys import EOS, oracle, random_drafter, toy_target
from tests.core.transformers_engine.conftest import Trained, random_prompt

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
    return toy_target(num_hidden_layers=3)


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
        assert write(target, drafter, params).token_ids == plain.token_ids


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_json_schema_through_xgrammar_is_kept(trained: Trained, temperature: float) -> None:
    info = xgrammar.TokenizerInfo.from_huggingface(trained.target.tokenizer, vocab_size=trained.target.vocab_size)
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "done": {"type": "boolean"}},
        "required": ["name", "done"],
    }
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(schema), any_whitespace=False)
    engine, plain = TransformersEngine(trained.target, trained.drafter), TransformersEngine(trained.target)
    for seed, prompt in enumerate(("def f():\n", "The result is ", "import json\n")):
        params = SamplingParams(constraint=Grammar(compiled), max_new_tokens=60, temperature=temperature, seed=seed)
        (completion,) = engine.generate(prompt, params)
        assert set(json.loads(completion.text)) == {"name", "done"}
        assert completion.finish_reason == "stop"
        if temperature == 0:
            assert completion.token_ids == plain.generate(prompt, params)[0].token_ids
            assert completion.stats.num_accepted > 0
