"""Charts show the numbers, as SVG and as PNG."""

import io
from xml.etree import ElementTree

import pytest
from PIL import Image

from dflash2_core import AcceptanceStats
from dflash2_core.benchmarks import Batch
from dflash2_core.benchmarks.benching import BenchReport, Measured
from dflash2_core.benchmarks.charts import BOTTOM, HEIGHT, charts, speed_ups
from dflash2_core.benchmarks.drawing import Box, png, stacked, svg
from dflash2_core.benchmarks.page import page

SIZES = (1, 16)


def batch(size: int, speed_up: float, positions: list[int]) -> Batch:
    stats = AcceptanceStats(
        num_cycles=10,
        num_drafted=20,
        num_accepted=sum(positions),
        num_committed=10 + sum(positions),
        accepted_per_position=positions,
    )
    return Batch(size=size, plain=[100.0], drafted=[100 * speed_up], num_texts=4, num_identical=4, acceptance=stats, answers=[])


@pytest.fixture
def report() -> BenchReport:
    told = [batch(1, 1.5, [8, 5]), batch(16, 0.75, [8, 5])]
    untold = [batch(1, 1.2, []), batch(16, 1.0, [])]
    measured = [
        Measured(engine="one", facts={"engine": "one"}, batches=told, findings=[]),
        Measured(engine="a <second>", facts={}, batches=untold, findings=["it <fails>"]),
    ]
    left_out = {"third": "is not there"}
    return BenchReport(machine="a machine", rounds=1, num_prompts=4, new_tokens=8, measured=measured, left_out=left_out)


def test_bars_are_as_high_as_the_speed_ups(report: BenchReport) -> None:
    heights = [shape.height for shape in speed_ups(report.measured).shapes if isinstance(shape, Box)]
    assert [height / heights[0] for height in heights] == pytest.approx([1, 0.75 / 1.5, 1.2 / 1.5, 1 / 1.5])
    feet = {shape.top + shape.height for shape in speed_ups(report.measured).shapes if isinstance(shape, Box)}
    assert all(foot == pytest.approx(HEIGHT - BOTTOM) for foot in feet)


def test_the_svg_is_well_formed_and_names_every_engine_and_value(report: BenchReport) -> None:
    drawn = [svg(drawing) for drawing in charts(report)]
    assert len(drawn) == 3
    texts = {element.text for each in drawn for element in ElementTree.fromstring(each).iter("text")}
    assert {"one", "a <second>", "1.50", "0.75", "1.20", "2.30", "draft 2"} <= texts


def test_an_engine_that_tells_no_positions_has_no_line_among_those_that_do(report: BenchReport) -> None:
    by_position = svg(charts(report)[-1])
    assert "one" in by_position
    assert "second" not in by_position


def test_the_png_is_the_same_picture(report: BenchReport) -> None:
    drawing = stacked(charts(report))
    image = Image.open(io.BytesIO(png(drawing)))
    assert image.size == (2 * drawing.width, 2 * drawing.height)
    bar = next(shape for shape in speed_ups(report.measured).shapes if isinstance(shape, Box))
    inside = round(2 * (bar.left + bar.width / 2)), round(2 * (bar.top + bar.height / 2))
    assert "#{:02x}{:02x}{:02x}".format(*image.getpixel(inside)) == bar.colour  # type: ignore[misc]


def test_the_page_has_charts_tables_findings_and_what_was_left_out(report: BenchReport) -> None:
    html = page(report)
    assert html.count("<svg") == 3
    assert "a &lt;second&gt;: it &lt;fails&gt;" in html
    assert "Not measured: third: is not there" in html
    assert "<td>1.50</td><td>150.0</td><td>100.0</td><td>2.30</td><td>4 of 4</td>" in html
    assert "<second>" not in html
