"""How many drafts a cycle asks for changes what a text costs, never the text."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dflash2_core import AcceptanceStats, SamplingParams, TransformersEngine
from dflash2_core.errors import CompatibilityError
from dflash2_core.transformers_engine import Target
from dflash2_core.transformers_engine.batch import Batch
from dflash2_core.transformers_engine.cache import RollbackCache
from dflash2_core.transformers_engine.requests import Request
from dflash2_core.transformers_engine.width import Auto
from tests.core.toys import oracle, random_drafter, toy_target
from tests.core.transformers_engine.conftest import NEW, random_prompt

FITS = {"num_target_layers": 3, "target_layer_ids": (1,)}
PROMPTS = [random_prompt(length, seed=length) for length in (30, 1, 9, 17)]
PARAMS = SamplingParams(max_new_tokens=NEW + 16, ignore_eos=True)


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(num_hidden_layers=3)


class Flips:
    """Another width each cycle, none among them."""

    def __init__(self, seed: int) -> None:
        self.random, self.chosen, self.noted = random.Random(seed), Counter[int](), Counter[int]()

    def choose(self, rows: int) -> int:
        width = self.random.choice([0, 0, 0, 1, 3, 7])
        self.chosen[width] += 1
        return width

    def rest(self, rows: int) -> int:
        return 0

    def note(self, rows: int, width: int, accepted: Sequence[tuple[int, int]], seconds: float) -> None:
        assert all(0 <= kept <= drafted <= width for drafted, kept in accepted)
        assert seconds > 0
        self.noted[width] += 1


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("windows", [(5, 5), (None, 12)])
def test_widths_that_change_every_cycle_change_no_id(rows: int, windows: tuple[int | None, ...], target: Target) -> None:
    plain = [c.token_ids for c in TransformersEngine(target).generate(PROMPTS, PARAMS)]
    drafters = [random_drafter(seed=2, layer_windows=windows, **FITS)]
    drafters += [oracle(PROMPTS[0], plain[0], layer_windows=windows, **FITS)] if rows == 1 else []
    for drafter in drafters:
        engine = TransformersEngine(target, drafter, max_batch_size=rows)
        engine._width = flips = Flips(rows)  # type: ignore[assignment]
        completions = engine.generate(PROMPTS, PARAMS)
        assert [c.token_ids for c in completions] == plain
        assert set(flips.chosen) == {0, 1, 3, 7}
        assert flips.noted[0] > 0 < flips.noted[7]
        assert sum(c.stats.skipped["does not pay at present"] for c in completions) > 10
        assert sum(c.stats.num_cycles for c in completions) > 10


def test_what_was_left_to_append_is_there_when_it_drafts_again(target: Target) -> None:
    """After any number of plain steps the context is that of a drafter which saw the text at once, and drafts alike."""
    drafter = random_drafter(seed=2, layer_windows=(12, 12), **FITS)
    for pause in (1, 5, 31, 32, 33, 40):
        engine = TransformersEngine(target, drafter)
        scheduler = engine.scheduler(1)
        request = engine.request(PROMPTS[2], SamplingParams(max_new_tokens=60, ignore_eos=True))
        scheduler.submit([request])
        scheduler.step()
        batch = scheduler._batch
        batch.width = type("Never", (Flips,), {"choose": lambda self, rows: 0})(0)
        for _ in range(pause):
            scheduler.step()
        batch._catch_up()
        assert_it_drafts_as_from_a_whole_text(batch, request, target)


def assert_it_drafts_as_from_a_whole_text(batch: Batch, request: Request, target: Target) -> None:
    drafter, context, row = batch.drafter, batch._context, batch.requests.index(request)
    assert drafter is not None
    assert context is not None
    committed = request.prompt + request.output[:-1]
    fresh = drafter.new_context(len(batch.requests))
    _, taps = target.forward(torch.tensor([committed]), target.new_cache(), rows=1, taps=drafter.config.target_layer_ids)
    assert taps is not None
    for i in range(row + 1):
        fresh.join()
        fresh.append(taps, [len(committed)], first_row=i)
    assert context.lengths[row] == len(committed)
    options: dict[str, Any] = {
        "embed": target.embed,
        "head": target.head,
        "temperature": torch.zeros(row + 1),
        "streams": None,
    }
    anchors, asked = torch.tensor(request.output[-1:] * (row + 1)), [0] * row + [7]
    ours, whole = (drafter.propose(each, anchors, asked, **options).tokens[row].tolist() for each in (context, fresh))
    assert ours == whole


class Rests(Flips):
    """Whole blocks for three cycles, then a rest of so many, again and again."""

    def __init__(self, length: int) -> None:
        super().__init__(0)
        self.length, self.left, self.until = length, 0, 3

    def rest(self, rows: int) -> int:
        return self.left

    def choose(self, rows: int) -> int:
        if self.left > 0:
            self.left -= 1
            return 0
        self.until -= 1
        if self.until == 0:
            self.left, self.until = self.length, 3
        return 7


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("rest", [5, 20, 600])
def test_requests_that_are_given_up_write_the_same(rest: int, rows: int, target: Target) -> None:
    plain = [c.token_ids for c in TransformersEngine(target).generate(PROMPTS, PARAMS)]
    engine = TransformersEngine(target, random_drafter(seed=2, layer_windows=(None, 12), **FITS), max_batch_size=rows)
    engine._width = Rests(rest)  # type: ignore[assignment]
    completions = engine.generate(PROMPTS, PARAMS)
    assert [c.token_ids for c in completions] == plain
    assert sum(c.stats.num_cycles for c in completions) > 0
    assert sum(c.stats.skipped["does not pay at present"] for c in completions) > 0


def test_a_rest_passes_while_nothing_is_drafted_and_then_requests_draft_again(target: Target) -> None:
    engine = TransformersEngine(target, random_drafter(seed=2, **FITS))
    engine._width = width = Rests(600)  # type: ignore[assignment]
    drafted = []
    for _ in range(32):
        (completion,) = engine.generate(PROMPTS[0], PARAMS)
        drafted.append(completion.stats.num_cycles > 0)
    assert width.left > 0
    assert drafted[:2] == [True, False]
    assert 2 <= sum(drafted) <= 5


def test_nothing_is_tapped_for_requests_that_are_given_up(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    forward = Target.forward

    def noting(self: Target, *args: Any, taps: Sequence[int] = (), **options: Any) -> Any:
        asked.append(tuple(taps))
        return forward(self, *args, taps=taps, **options)

    monkeypatch.setattr(Target, "forward", noting)
    engine = TransformersEngine(target, random_drafter(seed=2, **FITS))
    engine._width = Rests(600)  # type: ignore[assignment]
    engine.generate(PROMPTS[:2], PARAMS)
    assert asked[0] == (1,)
    end_of_first = len(asked) // 2
    assert set(asked[10:end_of_first]) == set(asked[end_of_first + 1 :]) == {()}


def test_a_row_beside_one_that_is_given_up_drafts_from_its_whole_text(target: Target) -> None:
    engine = TransformersEngine(target, random_drafter(seed=2, layer_windows=(12, 12), **FITS), max_batch_size=2)
    engine._width = Rests(20)  # type: ignore[assignment]
    scheduler = engine.scheduler(2)
    short, long = (engine.request(PROMPTS[2], SamplingParams(max_new_tokens=n, ignore_eos=True)) for n in (18, 90))
    scheduler.submit([short, long])
    batch = scheduler._batch
    for _ in range(5 + 8):  # two join, three cycles draft, the rest begins
        scheduler.step()
    assert batch._given_up == {short}
    batch._catch_up()
    assert_it_drafts_as_from_a_whole_text(batch, long, target)
    with pytest.raises(AssertionError):
        assert_it_drafts_as_from_a_whole_text(batch, short, target)


def forgets_what_waits(self: Batch) -> None:
    self._late.clear()


def appends_one_of_those_that_wait(self: Batch) -> None:
    self._late = self._late[-1:]
    catch_up(self)


catch_up = Batch._catch_up


@pytest.mark.parametrize("fault", [forgets_what_waits, appends_one_of_those_that_wait])
def test_plain_steps_that_the_drafter_never_sees_are_caught(
    fault: Callable[[Batch], None], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batch, "_catch_up", fault)
    with pytest.raises(AssertionError):
        test_what_was_left_to_append_is_there_when_it_drafts_again(target)


def test_a_gate_that_leaves_rejected_ids_behind_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant goes back after whole blocks and plain steps, and not after the widths between."""
    rewind = Target.rewind

    def seldom(self: Target, cache: RollbackCache, kept: Sequence[int]) -> None:
        whole = [cache.place.length] * len(kept)
        rewind(self, cache, kept if cache.place.length in (1, 8) else whole)

    monkeypatch.setattr(Target, "rewind", seldom)
    with pytest.raises(AssertionError):
        test_widths_that_change_every_cycle_change_no_id(3, (5, 5), target)


def test_a_gate_whose_state_is_not_told_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceptanceStats, "skip", lambda self, reason: None)
    with pytest.raises(AssertionError):
        test_widths_that_change_every_cycle_change_no_id(3, (5, 5), target)


def simulate(
    tokens_of: Callable[[int], int], seconds_of: Callable[[int], float], cycles: int, seed: int = 0
) -> tuple[float, Auto]:
    """Tokens per second of `Auto` where a width gives so many accepted drafts and takes so long, with noise of a tenth."""
    noise, width = random.Random(seed), Auto(7)
    tokens = seconds = 0.0
    for _ in range(cycles):
        chosen = width.choose(1)
        took = seconds_of(chosen) * noise.uniform(0.95, 1.05)
        kept = min(chosen, tokens_of(chosen))
        width.note(1, chosen, [(chosen, kept)] if chosen else [], took)
        tokens, seconds = tokens + 1 + kept, seconds + seconds_of(chosen)
    return tokens / seconds, width


def test_a_drafter_that_does_not_pay_costs_next_to_nothing() -> None:
    cost = lambda width: 1.0 + (0.6 if width else 0.0) + 0.05 * width  # noqa: E731
    for cycles in (500, 2000):
        speed, _ = simulate(lambda width: 0, cost, cycles)
        assert speed > 0.98


def test_a_first_cycle_that_was_slow_is_forgotten() -> None:
    """Where memory is laid out and libraries are loaded; it says nothing about the width."""
    width, cost, seen = Auto(7), lambda w: 1.0 + (0.4 if w else 0.0), set[int]()
    for _ in range(100):
        chosen = width.choose(1)
        slow = 1 if chosen in seen else 30
        seen.add(chosen)
        width.note(1, chosen, [(chosen, chosen)] if chosen else [], slow * cost(chosen))
    assert width.choose(1) == 7
    assert width.rest(1) == 0


def test_what_does_not_pay_for_eight_says_nothing_of_one() -> None:
    """Acceptance is the drafter's; what a block costs beside a step is another thing for each number of requests."""
    cost = {1: lambda w: 1.0 + (0.3 if w else 0.0), 8: lambda w: 2.0 + (14.0 if w else 0.0)}
    width, alone = Auto(7), []
    for rows, cycles in ((1, 200), (8, 60), (1, 200), (8, 60), (1, 200)):
        for _ in range(cycles):
            chosen = width.choose(rows)
            width.note(rows, chosen, [(chosen, min(chosen, 5))] * rows if chosen else [], cost[rows](chosen))
            alone += [chosen] if rows == 1 else []
    assert width.rest(8) > 60
    assert width.rest(1) == 0
    assert sum(chosen >= 5 for chosen in alone) > 0.95 * len(alone)


def test_requests_that_never_draft_are_part_of_what_it_costs() -> None:
    """A block that pays where all draft does not pay where one in eight does."""
    cost = lambda w: 1.0 + (1.0 if w else 0.0)  # noqa: E731
    for drafting, pays in ((8, True), (1, False)):
        width, chosen = Auto(7), []
        for _ in range(300):
            chosen.append(width.choose(8))
            width.note(8, chosen[-1], [(chosen[-1], min(chosen[-1], 3))] * drafting if chosen[-1] else [], cost(chosen[-1]))
        assert (sum(each > 0 for each in chosen[100:]) > 150) is pays


def test_nothing_that_is_measured_breaks_it() -> None:
    chance, width = random.Random(3), Auto(7)
    for _ in range(20_000):
        rows = chance.randint(1, 4)
        chosen = width.choose(rows)
        assert 0 <= chosen <= 7
        assert 0 <= width.rest(rows) <= 4096
        drafting = chance.randint(1, rows) if chosen else 0
        accepted = [(chosen, chance.randint(0, chosen)) for _ in range(drafting)]
        if chance.random() < 0.9:
            width.note(rows, chosen, accepted, chance.choice([0.0, 1e-6, 1.0, 100.0]))


@pytest.mark.parametrize("right", range(1, 8))
def test_as_many_are_asked_for_as_are_accepted(right: int) -> None:
    """Every draft up to the `right`-th is accepted, none after: that width is the best where each draft costs something."""
    cost = lambda width: 1.0 + (0.2 if width else 0.0) + 0.1 * width  # noqa: E731
    speed, _ = simulate(lambda width: right, cost, cycles=2000)
    best = max((1 + min(right, w)) / cost(w) for w in range(8))
    assert speed > 0.96 * best


def test_when_a_drafter_begins_to_pay_it_is_noticed() -> None:
    width, cost = Auto(7), lambda w: 1.0 + (0.4 if w else 0.0)
    for phase, right in ((0, 0), (1, 7)):
        chosen = []
        for _ in range(3000):
            chosen.append(width.choose(1))
            width.note(1, chosen[-1], [(chosen[-1], min(chosen[-1], right))] if chosen[-1] else [], cost(chosen[-1]))
        assert Counter(chosen[-200:]).most_common(1)[0][0] == (7 if phase else 0)


def test_without_a_drafter_there_is_nothing_to_choose(target: Target) -> None:
    """For long enough that a rest would end."""
    params = SamplingParams(max_new_tokens=80, ignore_eos=True)
    expected = TransformersEngine(target).generate(PROMPTS[:1], params)
    (completion,) = TransformersEngine(target, width="auto").generate(PROMPTS[:1], params)
    assert completion.token_ids == expected[0].token_ids
    assert completion.stats.skipped["no drafter"] == 79


def test_what_is_measured_is_what_was_chosen_for_as_many_requests(target: Target) -> None:
    """One request drafts beside one that does not: whole cycles of both are noted, and none of another number."""
    engine = TransformersEngine(target, random_drafter(seed=2, **FITS), max_batch_size=2)
    engine._width = flips = Flips(1)  # type: ignore[assignment]
    noted: list[tuple[int, int]] = []
    flips.note = lambda rows, width, accepted, seconds: noted.append((rows, width))  # type: ignore[method-assign]
    off = SamplingParams(max_new_tokens=100, ignore_eos=True, speculate=False)
    engine.generate(PROMPTS[:2], [PARAMS, off])
    assert {rows for rows, _ in noted} <= {1, 2}
    assert {width for rows, width in noted if rows == 2} == {0, 1, 3, 7}
    noted.clear()
    engine.generate(PROMPTS[:2], off)
    assert noted == []


def test_the_engine_measures_and_writes_the_same(target: Target) -> None:
    plain = [c.token_ids for c in TransformersEngine(target).generate(PROMPTS, PARAMS)]
    drafter = random_drafter(seed=2, **FITS)
    for rows in (1, 4):
        completions = TransformersEngine(target, drafter, max_batch_size=rows, width="auto").generate(PROMPTS, PARAMS)
        assert [c.token_ids for c in completions] == plain
        assert sum(c.stats.num_drafted for c in completions) > 0
    with pytest.raises(CompatibilityError, match="width is 'wide'"):
        TransformersEngine(target, drafter, width="wide")
