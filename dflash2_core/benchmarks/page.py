"""A bench report as one HTML file: no scripts, no other files."""

from collections.abc import Sequence
from html import escape

from dflash2_core.benchmarks.benching import BenchReport, Measured
from dflash2_core.benchmarks.charts import charts
from dflash2_core.benchmarks.drawing import svg
from dflash2_core.conformance.page import STYLE

HEAD = ("requests at once", "speed-up", "tokens per second", "plain", "acceptance length", "identical texts")


def page(report: BenchReport) -> str:
    """Charts, medians, and what ran."""
    parts = [
        "<h1>dflash2 bench</h1>",
        f"<p>{escape(report.machine)}. {report.num_prompts} prompts, up to {report.new_tokens} new tokens each, greedy; "
        f"medians of {report.rounds} rounds, both sides asked in turn in one run. Times are a client's, prompts included.</p>",
        *(f"<p class=bad>{escape(finding)}</p>" for finding in report.findings),
        *(f"<div>{svg(drawing)}</div>" for drawing in charts(report)),
        *(part for measured in report.measured for part in _engine(measured)),
        *(f"<p>Not measured: {escape(name)}: {escape(reason)}</p>" for name, reason in report.left_out.items()),
    ]
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>dflash2 bench</title><style>{STYLE}</style>"
    return f"{head}{''.join(parts)}</html>\n"


def _engine(measured: Measured) -> list[str]:
    rows = []
    for batch in measured.batches:
        told = batch.to_dict()
        speeds, length = told["tokens_per_s"], batch.acceptance.mean_acceptance_length
        identical = f"{batch.num_identical} of {batch.num_texts}"
        cells = (f"{batch.speed_up:.2f}", f"{speeds['drafted']:.1f}", f"{speeds['plain']:.1f}", f"{length:.2f}", identical)
        rows.append((str(batch.size), *cells))
    return [f"<h2>{escape(measured.engine)}</h2>", _table(HEAD, rows), _table(("", ""), list(measured.facts.items()))]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{titles}</tr>' if any(head) else ''}{body}</table>"
