"""Log-probabilities: the target's own, one entry a committed token, whatever was drafted and however it is sampled."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from dflash2_core import Completion, SamplingParams, TransformersEngine
from dflash2_core.transformers_engine import Target
from dflash2_core.transformers_engine.requests import Request
from tests.core.toys import VOCABULARY, oracle, toy_model
from tests.core.transformers_engine.test_batches import PROMPTS, drafter, options, three_layers


@pytest.fixture(scope="module")
def target() -> Target:
    return three_layers()


@pytest.fixture(scope="module")
def exact() -> Target:
    """In float64, where rounding does not hide a wrong row."""
    return Target(toy_model(num_hidden_layers=3).double())


def assert_plain_logprobs(exact: Target, prompts: Sequence[list[int]], completions: Sequence[Completion]) -> None:
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = completion.token_ids
        rows = exact.model(torch.tensor([prompt + ids[:-1]])).logits[0, len(prompt) - 1 :].log_softmax(-1)
        assert completion.logprobs is not None
        assert [entry.token_id for entry in completion.logprobs] == ids
        for row, entry in zip(rows, completion.logprobs, strict=True):
            assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-6)
            assert entry.logprob < 0.0, "no id of this target is certain"
            best = row.topk(3)
            assert [token for token, _ in entry.top] == best.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-6)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_logprobs_are_those_of_plain_decoding(temperature: float, rows: int, exact: Target) -> None:
    engine = TransformersEngine(exact, drafter().double(), max_batch_size=rows)
    completions = engine.generate(PROMPTS[:6], options(6, logprobs=3, temperature=temperature))
    assert all(c.stats.num_drafted > 0 for c in completions)
    assert_plain_logprobs(exact, PROMPTS[:6], completions)


def half_right(exact: Target) -> tuple[list[list[int]], list[Completion]]:
    """Blocks that are accepted whole, in part and not at all."""
    prompt, params = PROMPTS[0], SamplingParams(max_new_tokens=30, ignore_eos=True, logprobs=3)
    (plain,) = TransformersEngine(exact).generate([prompt], params)
    knowing = oracle(prompt, plain.token_ids, num_target_layers=3, target_layer_ids=(1,)).double()
    for at in (len(prompt) + 9, len(prompt) + 12):  # the first draft of the second block, the third of the third
        knowing.script[at] = (knowing.script[at] + 1) % VOCABULARY
    (completion,) = TransformersEngine(exact, knowing).generate([prompt], params)
    assert completion.token_ids == plain.token_ids
    assert completion.stats.drafted_per_position == [5] * 7
    assert completion.stats.accepted_per_position == [4, 4, 3, 3, 3, 3, 3]
    return [prompt, prompt], [plain, completion]


def test_a_block_accepted_whole_in_part_or_not_gives_those_of_its_committed_ids(exact: Target) -> None:
    assert_plain_logprobs(exact, *half_right(exact))


def of_the_row_before(note: Callable[..., None]) -> Callable[..., None]:
    return lambda self, logits: note(self, logits.roll(1, 0))


def of_the_sharpened_law(note: Callable[..., None]) -> Callable[..., None]:
    return lambda self, logits: note(self, logits / 0.9)


def of_the_choice_itself(note: Callable[..., None]) -> Callable[..., None]:
    """The accepted id is certain once it is accepted."""

    def certain(self: Request, logits: Tensor) -> None:
        ids = torch.tensor(self.output[-len(logits) :])
        note(self, torch.full_like(logits, -torch.inf).scatter(1, ids[:, None], 0.0))

    return certain


def of_the_last_row_alone(note: Callable[..., None]) -> Callable[..., None]:
    return lambda self, logits: note(self, logits[-1:])


@pytest.mark.parametrize("fault", [of_the_row_before, of_the_sharpened_law, of_the_choice_itself, of_the_last_row_alone])
def test_logprobs_of_another_row_or_law_are_caught(
    fault: Callable[..., Callable[..., None]], exact: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Request, "note_logprobs", fault(Request.note_logprobs))
    with pytest.raises(AssertionError):
        test_a_block_accepted_whole_in_part_or_not_gives_those_of_its_committed_ids(exact)


def test_logprobs_come_when_asked_for_and_with_as_many_others_as_asked(target: Target) -> None:
    (none,) = TransformersEngine(target).generate([PROMPTS[0]], SamplingParams(max_new_tokens=3))
    assert none.logprobs is None
    (chosen_only,) = TransformersEngine(target).generate([PROMPTS[0]], SamplingParams(max_new_tokens=3, logprobs=0))
    assert chosen_only.logprobs is not None
    assert [entry.top for entry in chosen_only.logprobs] == [[], [], []]
