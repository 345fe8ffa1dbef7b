"""The target's features: the outputs of exactly the layers that the drafter names, of exactly the committed tokens."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash2_core import Drafter, Proposal, TransformersEngine
from dflash2_core.drafter import DrafterContext
from dflash2_core.errors import Dflash2Error
from dflash2_core.transformers_engine import Target
from tests.core.toys import always_wrong, drafter_config, oracle, random_drafter, toy_model
from tests.core.transformers_engine.conftest import NEW, complete, random_prompt

IDS = random_prompt(9, seed=1)


@pytest.fixture
def fresh() -> Target:
    """A target whose every layer adds a constant of its own, so that no two can be taken for each other."""
    model = toy_model()
    for i, layer in enumerate(model.model.layers):
        layer.mlp.down_proj.bias = torch.nn.Parameter(torch.full((16,), 10.0 * 2**i))
    return Target(model)


def features(target: Target, ids: Sequence[int], taps: Sequence[int]) -> Tensor:
    taken = target.forward(torch.tensor([list(ids)]), target.new_cache(), rows=1, taps=taps)[1]
    assert taken is not None
    return taken


@torch.inference_mode()
def named_by_transformers(target: Target, ids: Sequence[int], taps: Sequence[int]) -> Tensor:
    output = target.model(torch.tensor([list(ids)]), output_hidden_states=True)
    assert len(output.hidden_states) == target.num_layers + 1
    return torch.cat([output.hidden_states[tap + 1] for tap in taps], dim=-1)


@pytest.mark.parametrize("taps", [(0,), (4,), (0, 2, 4), (4, 2, 0), (3, 1), (0, 1, 2, 3, 4)])
def test_taps_are_the_outputs_of_the_named_layers_in_the_order_named(taps: tuple[int, ...], fresh: Target) -> None:
    taken = features(fresh, IDS, taps)
    assert taken.shape == (1, len(IDS), len(taps) * 16)
    torch.testing.assert_close(taken, named_by_transformers(fresh, IDS, taps))


@pytest.mark.parametrize("shift", [1, -1])
def test_taps_shifted_by_one_layer_are_caught(shift: int, fresh: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = Target.tap
    keeper = Target._keeper
    monkeypatch.setattr(Target, "_keeper", lambda self, layer: keeper(self, layer - shift))
    monkeypatch.setattr(Target, "tap", lambda self, ids: tap(self, [i + shift for i in ids]))
    with pytest.raises(AssertionError):
        test_taps_are_the_outputs_of_the_named_layers_in_the_order_named((1, 3), fresh)


def test_taps_in_another_order_are_caught(fresh: Target) -> None:
    with pytest.raises(AssertionError):
        torch.testing.assert_close(features(fresh, IDS, (0, 2, 4)), named_by_transformers(fresh, IDS, (4, 2, 0)))


def test_a_pass_over_a_few_new_tokens_taps_these_alone(fresh: Target) -> None:
    cache = fresh.new_cache()
    fresh.forward(torch.tensor([IDS[:5]]), cache, rows=1, taps=(0, 2, 4))
    logits, taken = fresh.forward(torch.tensor([IDS[5:]]), cache, rows=2, taps=(0, 2, 4))
    assert logits.shape == (1, 2, 37)
    torch.testing.assert_close(taken, named_by_transformers(fresh, IDS, (0, 2, 4))[:, 5:], rtol=1e-4, atol=1e-4)


def hooks(target: Target) -> list[int]:
    return [len(layer._forward_hooks) for layer in target.layers]


def test_hooks_are_on_exactly_the_tapped_layers_and_go_with_the_taps() -> None:
    target = Target(toy_model())
    untouched = complete(TransformersEngine(target), IDS).token_ids
    state = {name: tensor.clone() for name, tensor in target.model.state_dict().items()}
    complete(TransformersEngine(target, random_drafter(target_layer_ids=(3, 1))), IDS)
    assert hooks(target) == [0, 1, 0, 1, 0, 0]
    complete(TransformersEngine(target, random_drafter(target_layer_ids=(0, 2, 4))), IDS)
    assert hooks(target) == [1, 0, 1, 0, 1, 0]
    target.tap(())
    assert hooks(target) == [0] * 6
    assert complete(TransformersEngine(target), IDS).token_ids == untouched
    assert all(torch.equal(tensor, state[name]) for name, tensor in target.model.state_dict().items())


def test_a_plain_engine_on_a_target_that_was_tapped_taps_nothing() -> None:
    target = Target(toy_model())
    complete(TransformersEngine(target, random_drafter()), IDS)
    complete(TransformersEngine(target), IDS)
    assert hooks(target) == [0] * 6


def test_hidden_states_of_all_layers_are_never_asked_for(target: Target) -> None:
    asked: list[dict[str, Any]] = []
    handle = target.model.register_forward_pre_hook(lambda module, args, kwargs: asked.append(kwargs), with_kwargs=True)
    try:
        completion = complete(TransformersEngine(target, random_drafter()), IDS)
    finally:
        handle.remove()
    assert completion.stats.num_drafted > 0
    assert len(asked) == 1 + completion.stats.num_target_passes
    assert not any(kwargs.get("output_hidden_states") for kwargs in asked)
    assert not target.model.config.output_hidden_states


def test_logits_are_made_for_no_row_that_is_not_judged(target: Target) -> None:
    rows: list[int] = []
    handle = target.model.lm_head.register_forward_hook(lambda module, args, output: rows.append(output.shape[1]))
    try:
        text = complete(TransformersEngine(target), random_prompt(50, seed=1), max_new_tokens=10).token_ids
        assert rows == [1] * 10
        rows.clear()
        complete(
            TransformersEngine(target, oracle(random_prompt(50, seed=1), text)), random_prompt(50, seed=1), max_new_tokens=10
        )
        assert rows == [1, 8, 1]
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("taps", "number"), [((0, 5), "5"), ((6,), "6"), ((-1,), "-1"), ((2, 2), "2"), ((), "target_layer_ids")], ids=repr
)
def test_taps_that_no_engine_could_agree_on_are_refused(taps: tuple[int, ...], number: str, target: Target) -> None:
    """The last layer means different things to different engines; the others name no layer, or one twice."""
    with pytest.raises(Dflash2Error, match=number):
        TransformersEngine(target, Drafter(drafter_config(target_layer_ids=taps, num_target_layers=None)))


class Recorder(Drafter):
    """Keeps what it was asked and what it drafted, cycle by cycle."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter.config)
        self.load_state_dict(drafter.state_dict())
        self.requires_grad_(False)
        self.cycles: list[tuple[int, int, list[int]]] = []

    def propose(self, context: DrafterContext, anchors: Tensor, lengths: Sequence[int], **options: Any) -> Proposal:  # type: ignore[override]
        proposal = super().propose(context, anchors, lengths, **options)
        self.cycles.append((context.lengths[0], int(anchors[0]), proposal.tokens[0].tolist()))
        return proposal


def assert_every_cycle_drafts_as_after_one_prefill(target: Target, windows: tuple[int | None, ...]) -> int:
    """In each cycle the drafts are those of a new context, filled in one pass over everything committed."""
    drafter = random_drafter(seed=5, layer_windows=windows)
    recorder, prompt = Recorder(drafter), random_prompt(20, seed=2)
    text = complete(TransformersEngine(target, recorder), prompt).token_ids
    ids = prompt + text
    for length, anchor, drafts in recorder.cycles:
        assert ids[length] == anchor
        context = drafter.new_context()
        context.join()
        taps = features(target, ids[:length], drafter.config.target_layer_ids)
        context.append(taps, [length])
        expected = drafter.propose(
            context,
            torch.tensor([anchor]),
            [len(drafts)],
            embed=target.embed,
            head=target.head,
            temperature=torch.zeros(1),
            streams=None,
        )
        assert drafts == expected.tokens[0].tolist()
    return len(recorder.cycles)


@pytest.mark.parametrize("windows", [(5, 5), (None, None), (None, 12)])
def test_every_cycle_drafts_as_after_one_prefill_of_all_that_is_committed(
    windows: tuple[int | None, ...], target: Target
) -> None:
    assert assert_every_cycle_drafts_as_after_one_prefill(target, windows) > NEW / 8


@pytest.mark.parametrize("mutant", ["rejected rows kept", "one row late", "anchor's row twice"])
def test_a_context_of_other_rows_than_the_committed_ones_is_caught(
    mutant: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = DrafterContext.append

    def wrong(self: DrafterContext, taps: Tensor, counts: Sequence[int], *, first_row: int = 0) -> None:
        if taps.shape[1] == 8:  # the rows of a verified block
            if mutant == "rejected rows kept":
                counts = [taps.shape[1]]
            else:
                taps = taps.roll(1 if mutant == "one row late" else -1, dims=1)
        append(self, taps, counts, first_row=first_row)

    monkeypatch.setattr(DrafterContext, "append", wrong)
    with pytest.raises(AssertionError):
        assert_every_cycle_drafts_as_after_one_prefill(target, (5, 5))


def test_the_context_grows_by_what_was_committed_whatever_was_accepted(target: Target) -> None:
    prompt = random_prompt(20, seed=2)
    text = complete(TransformersEngine(target), prompt).token_ids
    for drafter, step in ((oracle(prompt, text), 8), (always_wrong(prompt, text), 1)):
        seen: list[int] = []
        propose = drafter.propose

        def noting(context: DrafterContext, *rest: Any, propose: Any = propose, seen: Any = seen, **options: Any) -> Proposal:
            seen.append(context.lengths[0])
            return propose(context, *rest, **options)

        drafter.propose = noting  # type: ignore[method-assign]
        complete(TransformersEngine(target, drafter), prompt)
        assert seen == list(range(20, 20 + NEW - 2 + (step == 8), step))[: len(seen)]
        assert len(seen) == -(-(NEW - 2) // step)
