"""Grammars through `xgrammar`: its matcher goes back with rejected drafts, and ends with the language."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import xgrammar
from torch import Tensor

from dflash2_core import Completion, Drafter, SamplingParams, TransformersEngine
from dflash2_core.errors import Dflash2Error, SamplingError
from dflash2_core.sampling import LogitsProcessor
from dflash2_core.sampling.constraints import AfterToken, Grammar
from dflash2_core.transformers_engine import Target
from tests.core.toys import EOS, VOCABULARY, oracle, random_drafter, toy_target
from tests.core.transformers_engine.conftest import Trained
from tests.core.transformers_engine.test_constraints import FITS, PROMPT, write


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(2, num_hidden_layers=3)


LETTERED = xgrammar.TokenizerInfo(
    [chr(ord("a") + i) if i < 26 else f"<{i}>" for i in range(VOCABULARY)],
    vocab_type=xgrammar.VocabType.RAW,
    vocab_size=VOCABULARY,
    stop_token_ids=[EOS],
)
ALTERNATING = xgrammar.GrammarCompiler(LETTERED).compile_grammar("root ::= [a-m] ([n-z] [a-m]){4,9}")


@dataclass(frozen=True)
class Watched:
    """A grammar; each mask is held against that of a new matcher, which saw nothing but the history."""

    grammar: Grammar
    lengths: list[int]

    def begin(self, prompt: Sequence[int]) -> LogitsProcessor:
        followed = self.grammar.begin(prompt)

        def process(history: Tensor, logits: Tensor) -> Tensor:
            expected = self.grammar.begin(prompt)(history, logits.clone())
            masked = followed(history, logits)
            assert torch.equal(masked, expected), "the matcher is not where the history is"
            self.lengths.append(len(history))
            return masked

        return process


def assert_the_matcher_is_where_the_history_is(target: Target) -> None:
    def write_watched(drafter: Drafter | None, **options: Any) -> tuple[Completion, list[int]]:
        lengths: list[int] = []
        constraint = Watched(Grammar(ALTERNATING), lengths)
        return write(target, drafter, SamplingParams(constraint=constraint, max_new_tokens=30, **options)), lengths

    free = write(target, None, SamplingParams(max_new_tokens=30, ignore_eos=True)).token_ids
    plain, _ = write_watched(None)
    assert plain.finish_reason == "stop"
    past_the_end = [*plain.token_ids, 1, 1, 1, 1, 1, 1, 1]
    half = oracle(PROMPT, past_the_end, **FITS)
    half.script = {at: token if at % 3 else (token + 2) % 13 for at, token in half.script.items()}
    for drafter in (half, oracle(PROMPT, past_the_end, **FITS), oracle(PROMPT, free, **FITS), random_drafter(seed=1, **FITS)):
        completion, lengths = write_watched(drafter)
        assert completion.token_ids == plain.token_ids
        assert completion.stats.num_drafted > 0
        write_watched(drafter, temperature=1.0, seed=2)
        if drafter is half:
            assert any(later < earlier for earlier, later in pairwise(lengths)), "nothing was taken back"


def test_a_matcher_stands_where_the_history_stands_also_after_rejected_drafts(target: Target) -> None:
    assert_the_matcher_is_where_the_history_is(target)


def test_a_matcher_that_keeps_what_was_rejected_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xgrammar.GrammarMatcher, "rollback", lambda self, count=1: None)
    with pytest.raises((AssertionError, SamplingError)):
        assert_the_matcher_is_where_the_history_is(target)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_past_the_end_of_a_grammar_nothing_may_follow(target: Target, temperature: float) -> None:
    """With the end of sequence ignored the text would go on; it ends in a sentence, after the same ids."""
    params = SamplingParams(
        constraint=Grammar(ALTERNATING), max_new_tokens=30, ignore_eos=True, temperature=temperature, seed=1
    )
    written = []
    for drafter in (None, oracle(PROMPT, write(target, None, replace(params, ignore_eos=False)).token_ids + [1] * 9, **FITS)):
        engine = TransformersEngine(target, drafter)
        request, scheduler = engine.request(PROMPT, params), engine.scheduler(1)
        scheduler.submit([request])
        while not scheduler.is_idle:
            scheduler.step()
        assert isinstance(request.error, Dflash2Error)
        assert "forbid" in str(request.error)
        assert request.output[-1] == EOS
        written.append(request.output)
    assert temperature > 0 or written[0] == written[1]


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


def test_a_stream_holds_the_thoughts_and_what_follows(trained: Trained) -> None:
    tokenizer = trained.target.tokenizer
    assert tokenizer is not None
    (newline,) = tokenizer("\n")["input_ids"]
    prompt = tokenizer("The result is ")["input_ids"]

    def ends_after_12(history: Tensor, logits: Tensor) -> Tensor:
        thought = len(history) - len(prompt)
        if thought <= 12:
            logits[newline] = 1e4 if thought == 12 else -1e4
        return logits

    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=trained.target.vocab_size)
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema('{"type": "boolean"}', any_whitespace=False)
    params = SamplingParams(
        constraint=AfterToken(newline, Grammar(compiled)), logits_processor=ends_after_12, max_new_tokens=40
    )
    chunks = list(TransformersEngine(trained.target, trained.drafter).stream(prompt, params))
    completion = chunks[-1].completion
    assert completion is not None
    assert [token for chunk in chunks for token in chunk.token_ids] == completion.token_ids
    assert "".join(chunk.text for chunk in chunks) == completion.text
    assert completion.token_ids[12] == newline
    thoughts, after = tokenizer.decode(completion.token_ids[:12]), completion.text.rpartition("\n")[2]
    assert completion.text.startswith(thoughts)
    assert after in ("true", "false")
    assert completion.stats.num_accepted > 0
