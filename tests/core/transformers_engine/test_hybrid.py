"""Hybrid targets: beside keys and values a recurrent state, which must be that of the committed tokens and of no others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3NextConfig, Qwen3NextForCausalLM

from dflash2_core import SamplingParams, TransformersEngine
from dflash2_core.transformers_engine import Target
from dflash2_core.transformers_engine.cache import LINEAR, RecurrentLayer, RollbackCache
from tests.core.toys import EOS, PAD, VOCABULARY, ScriptedDrafter, drafter_config, oracle, random_drafter, randomise
from tests.core.transformers_engine.conftest import complete, random_prompt

KINDS = [LINEAR, "full_attention", LINEAR, "full_attention"]
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": KINDS,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "bos_token_id": None,
}
FITS = {"num_target_layers": 4, "target_layer_ids": (0, 1)}
PRIME = 10007


class IntegerState(nn.Module):
    """In a linear-attention layer's place: h = A h + B x mod a prime, x read off the inputs; what it holds is exact."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        generator = torch.Generator().manual_seed(index)
        self.A, self.B = torch.randint(PRIME, (2, 3, 3), generator=generator)
        self.out = nn.Parameter(torch.randn(3, 16, generator=generator))

    def forward(self, hidden_states: Tensor, cache: RollbackCache, **_: Any) -> Tensor:
        state = cache.get_recurrent_state(self.index)
        h = torch.zeros(len(hidden_states), 3, dtype=torch.int64) if state is None else state
        outputs = []
        for row in hidden_states.unbind(1):
            x = row.topk(3).indices
            h = (h @ self.A.T + x @ self.B.T) % PRIME
            outputs.append((h / PRIME) @ self.out)
        cache.update_recurrent_state(h, self.index)
        return torch.stack(outputs, dim=1)


def integer_model() -> PreTrainedModel:
    model = next_model()
    for index, layer in enumerate(model.model.layers):
        if KINDS[index] == LINEAR:
            layer.linear_attn = IntegerState(index)
    return model


def next_model() -> PreTrainedModel:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 12}
    return Qwen3NextForCausalLM(Qwen3NextConfig(**SHAPE, **experts, experts_implementation="eager")).eval()


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "Qwen3-Next": next_model,
    "Qwen3.5": lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SHAPE)).eval(),
    "integers": integer_model,
}


def target_of(kind: str, dtype: torch.dtype = torch.float32, scale: float = 0.6) -> Target:
    model = MODELS[kind]()
    randomise(model, seed=1, scale=scale)
    return Target(model.to(dtype))


@pytest.fixture(scope="module", params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def hybrid(kind: str) -> Target:
    return target_of(kind)


def states(cache: RollbackCache, row: int = 0) -> list[Tensor]:
    return [s[row].clone() for layer in cache.recurrent_layers for s in (layer.conv, layer.recurrent) if s is not None]


def assert_states_of_the_committed(target: Target, right: Callable[[int], bool], cycles: int) -> set[int]:
    """After each cycle the states equal those of a cache that reads what is committed, in the same pieces, and only that."""
    prompt = random_prompt(9, seed=1)
    text = complete(TransformersEngine(target), prompt, max_new_tokens=8 * cycles).token_ids
    drafter = ScriptedDrafter(drafter_config(**FITS))
    drafter.script = {9 + i: token if right(i) else (token + 1) % VOCABULARY for i, token in enumerate(text)}
    engine = TransformersEngine(target, drafter)
    scheduler = engine.scheduler(1)
    request = engine.request(prompt, SamplingParams(max_new_tokens=8 * cycles, ignore_eos=True))
    scheduler.submit([request])
    scheduler.step()
    lengths: set[int] = set()
    reference = target.new_cache()
    target.forward(torch.tensor([prompt]), reference, rows=1)
    for _ in range(cycles):
        ((_, chunk),) = scheduler.step()
        if request.is_over:
            break
        lengths.add(len(chunk.token_ids) - 1)
        committed = prompt + request.output[:-1]
        target.forward(torch.tensor([committed[reference.length :]]), reference, rows=1)
        for i, (held, expected) in enumerate(zip(states(scheduler._batch._cache), states(reference), strict=True)):
            if held.is_floating_point():  # what the second layer reads was rounded otherwise, by a pass of another length
                tolerance = 1e-6 if i < 2 else 1e-4
                torch.testing.assert_close(held, expected, atol=tolerance, rtol=tolerance)
            else:
                assert torch.equal(held, expected)
    assert request.output == text[: len(request.output)]
    return lengths


@pytest.mark.parametrize("kind", ["Qwen3-Next", "Qwen3.5"])
def test_the_state_is_that_of_the_committed_tokens_within_rounding(kind: str) -> None:
    """With moderate weights, and in float64 where the modules let it be: a fault is of the size of the states."""
    target = target_of(kind, torch.float64, scale=0.25)
    seen: set[int] = set()
    for length in range(8):
        seen |= assert_states_of_the_committed(target, lambda i, n=length: (i - 1) % (n + 1) != n, 7)  # type: ignore[misc]
    assert seen == set(range(8))


def test_the_state_is_exactly_that_of_the_committed_tokens() -> None:
    """50 cycles in which every length from 0 to 7 is accepted."""
    target = target_of("integers")
    runs = [n for n in (3, 0, 7, 1, 6, 2, 5, 4) for _ in range(7)]
    wrong, at = set(), 1
    for n in runs:
        at += n
        wrong.add(at)
        at += 1
    seen = assert_states_of_the_committed(target, lambda i: i not in wrong, 50)
    assert seen == set(range(8))


@pytest.mark.parametrize("kind", ["Qwen3-Next", "Qwen3.5"], indirect=True)
def test_it_equals_generate(hybrid: Target) -> None:
    for length in (1, 2, 9, 30):
        prompt = random_prompt(length, seed=length)
        ids = torch.tensor([prompt])
        output = hybrid.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, eos_token_id=None, do_sample=False
        )
        completion = complete(TransformersEngine(hybrid), prompt, max_new_tokens=20)
        assert completion.token_ids == output[0, length:].tolist()


def test_the_text_is_that_of_plain_decoding_whatever_is_drafted(hybrid: Target) -> None:
    for length, block_size in ((1, 2), (2, 8), (9, 5), (30, 8)):
        prompt = random_prompt(length, seed=length)
        text = complete(TransformersEngine(hybrid), prompt, max_new_tokens=16).token_ids
        for drafter in (random_drafter(seed=2, **FITS), oracle(prompt, text, **FITS)):
            completion = complete(TransformersEngine(hybrid, drafter, block_size=block_size), prompt, max_new_tokens=16)
            assert completion.token_ids == text
            assert completion.stats.num_drafted > 0


@pytest.mark.parametrize("rows", [2, 4])
def test_each_row_of_a_batch_is_what_it_is_alone(rows: int, hybrid: Target) -> None:
    prompts = [random_prompt(length, seed=length) for length in (9, 1, 17, 3, 30, 2)]
    params = [SamplingParams(max_new_tokens=6 + 3 * (i % 3), ignore_eos=True) for i in range(6)]
    drafter = random_drafter(seed=2, **FITS)
    alone = TransformersEngine(hybrid, drafter).generate(prompts, params)
    engine = TransformersEngine(hybrid, drafter, max_batch_size=rows, prefill_chunk=4)
    assert [c.token_ids for c in engine.generate(prompts, params)] == [c.token_ids for c in alone]
    assert sum(c.stats.num_drafted for c in alone) > 100


def assert_a_first_pass_is_taken_back(target: Target) -> None:
    """Of a pass over an empty cache, whose states did not exist before it, as many tokens stay as are kept."""
    ids = torch.tensor([random_prompt(8, seed=3)])
    for kept in range(9):
        taken_back, fresh = target.new_cache(), target.new_cache()
        target.forward(ids, taken_back, rows=8, revocable=True)
        target.rewind(taken_back, [kept])
        assert taken_back.length == kept
        if kept:
            target.forward(ids[:, :kept], fresh, rows=1)
            for held, expected in zip(states(taken_back), states(fresh), strict=True):
                torch.testing.assert_close(held, expected, atol=1e-4, rtol=1e-4)
        assert kept or not any(held.any() for held in states(taken_back))


def test_a_first_pass_is_taken_back_like_any_other(hybrid: Target) -> None:
    assert_a_first_pass_is_taken_back(hybrid)


def test_states_of_which_no_copy_was_made_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = RecurrentLayer.restore

    def only_what_was_copied(self: RecurrentLayer, rows: slice, of_pass: slice) -> None:
        if None not in self._copies:
            restore(self, rows, of_pass)

    monkeypatch.setattr(RecurrentLayer, "restore", only_what_was_copied)
    with pytest.raises(AssertionError):
        assert_a_first_pass_is_taken_back(target_of("integers"))


def never_rewound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecurrentLayer, "restore", lambda self, rows, of_pass: None)


def nothing_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "_note_input", lambda self, module, args, options: None)
    rewind = Target.rewind

    def restores_only(self: Target, cache: RollbackCache, kept: Any) -> None:
        place = cache.place
        rewind(self, cache, kept)
        for layer in cache.recurrent_layers:
            layer.restore(place.rows, slice(0, len(place.starts)))

    monkeypatch.setattr(Target, "rewind", restores_only)


@pytest.mark.parametrize("mutant", [never_rewound, nothing_read_again])
def test_a_state_that_keeps_what_was_rejected_or_loses_what_was_accepted_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of("integers")
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        assert_states_of_the_committed(target, lambda i: i % 3 != 0, 10)
