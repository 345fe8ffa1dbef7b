"""What was measured, as charts: the speed-up by requests at once, and how much of a block is accepted."""

from collections.abc import Iterator, Sequence
from itertools import cycle

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.benchmarks.benching import BenchReport, Measured
from dflash2_core.benchmarks.drawing import Box, Drawing, Line, Shape, Words

WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 56, 48
COLOURS = ("#3b6ea5", "#c8752d", "#3f8f5b", "#8a5a9e")
INK, FAINT, PAPER = "#1a1a1a", "#d5d5d5", "#ffffff"


def charts(report: BenchReport) -> list[Drawing]:
    """Those for which there is something to draw."""
    drawn = [speed_ups(report.measured), acceptance_lengths(report.measured)]
    if any(_acceptance(measured).accepted_per_position for measured in report.measured):
        drawn.append(by_position(report.measured))
    return drawn


def speed_ups(measured: Sequence[Measured]) -> Drawing:
    """A group of bars for each engine, one bar for each number of requests at once; plain decoding is the line at 1."""
    sizes = [batch.size for batch in measured[0].batches]
    groups = [[batch.speed_up for batch in each.batches] for each in measured]
    top = 1.15 * max(1.0, *(value for group in groups for value in group))
    shapes = [
        *_frame("Speed-up over plain decoding, by requests at once", top),
        *_bars(groups, [[str(size) for size in sizes]] * len(groups), [each.engine for each in measured], top, "{:.2f}"),
        Line(((LEFT, _y(1, top)), (WIDTH - RIGHT, _y(1, top))), INK, 1.5),
        Words(WIDTH - RIGHT, _y(1, top) - 4, "plain decoding", 11, "end"),
    ]
    return Drawing("speed-up over plain decoding", WIDTH, HEIGHT, tuple(shapes))


def acceptance_lengths(measured: Sequence[Measured]) -> Drawing:
    """One bar for each engine: tokens per cycle, the target's own included."""
    values = [_acceptance(each).mean_acceptance_length for each in measured]
    top = 1.15 * max(1.0, *values)
    shapes = [
        *_frame("Acceptance length: tokens per pass of the target, its own included", top),
        *_bars([[value] for value in values], [[""]] * len(values), [each.engine for each in measured], top, "{:.2f}"),
    ]
    return Drawing("acceptance length", WIDTH, HEIGHT, tuple(shapes))


def by_position(measured: Sequence[Measured]) -> Drawing:
    """A line for each engine that counts by position: the share of cycles that accepted the draft at each place."""
    shares = {each.engine: list(_shares(_acceptance(each))) for each in measured}
    longest = max(map(len, shares.values()))
    step = (WIDTH - LEFT - RIGHT) / longest
    shapes: list[Shape] = list(_frame("Share of cycles that accepted the draft at each place of a block", 1.0))
    shapes += [Words(LEFT + (i + 0.5) * step, HEIGHT - BOTTOM + 16, f"draft {i + 1}", 11, "middle") for i in range(longest)]
    told = [(engine, values) for engine, values in shares.items() if values]
    for place, ((engine, values), colour) in enumerate(zip(told, cycle(COLOURS), strict=False)):
        points = tuple((LEFT + (i + 0.5) * step, _y(value, 1.0)) for i, value in enumerate(values))
        shapes += [Line(points, colour, 2.0), *(Box(x - 3, y - 3, 6, 6, colour) for x, y in points)]
        key = WIDTH - RIGHT - 110, TOP + 4 + 18 * place
        shapes += [Box(*key, 10, 10, colour), Words(key[0] + 16, key[1] + 9, engine, 12)]
    return Drawing("share of cycles that accepted the draft at each position", WIDTH, HEIGHT, tuple(shapes))


def _acceptance(measured: Measured) -> AcceptanceStats:
    return AcceptanceStats.total(batch.acceptance for batch in measured.batches)


def _shares(stats: AcceptanceStats) -> Iterator[float]:
    if stats.num_cycles:
        yield from (count / stats.num_cycles for count in stats.accepted_per_position)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _frame(title: str, top: float) -> Iterator[Shape]:
    """A title, and a scale from 0 to `top` with some five steps."""
    yield Words(LEFT, 28, title, 15)
    step = next(step for step in (0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, top) if top / step <= 6)
    for i in range(int(top / step + 1e-9) + 1):
        y = _y(i * step, top)
        yield Line(((LEFT, y), (WIDTH - RIGHT, y)), FAINT)
        yield Words(LEFT - 8, y + 4, f"{i * step:g}", 11, "end")


def _bars(
    groups: Sequence[Sequence[float]], under: Sequence[Sequence[str]], names: Sequence[str], top: float, form: str
) -> Iterator[Shape]:
    """Groups of bars with their value at the foot, a word under each, and each group's name below."""
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    for i, (group, words, name, colour) in enumerate(zip(groups, under, names, cycle(COLOURS), strict=False)):
        step = min(0.8 * room / len(group), 64)
        left = LEFT + (i + 0.5) * room - step * len(group) / 2
        yield Words(LEFT + (i + 0.5) * room, HEIGHT - 12, name, 13, "middle")
        for j, (value, word) in enumerate(zip(group, words, strict=True)):
            y, middle = _y(value, top), left + (j + 0.5) * step
            yield Box(left + (j + 0.1) * step, y, 0.8 * step, HEIGHT - BOTTOM - y, colour)
            yield Words(middle, HEIGHT - BOTTOM - 8, form.format(value), 13, "middle", PAPER)  # no line of the scale is there
            yield Words(middle, HEIGHT - BOTTOM + 15, word, 11, "middle")
