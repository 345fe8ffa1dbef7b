"""A verify report as one HTML file, to be attached where a roll-out is decided: no scripts, no other files."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{border:1px solid #ccc;padding:.25rem .6rem;text-align:left}"
    "th{background:#f4f4f4}.good{color:#0a6b2d}.bad{color:#a40e26}code{font-size:.9em}svg text{font:12px system-ui,sans-serif}"
)
WIDTH, HEIGHT, MARGIN = 480, 180, 32


def page(report: Mapping[str, Any], facts: Mapping[str, str]) -> str:
    """report: `VerifyReport.to_dict()`; facts: what was tested with what, name -> value."""
    verdict, colour = ("lossless", "good") if report["lossless"] else ("NOT lossless", "bad")
    drafting = report["drafting"]
    parts = [
        f"<h1>dflash2 verify: <span class={colour}>{verdict}</span></h1>",
        _table(("tested", ""), facts.items()),
        "<h2>Greedy texts</h2>",
        _table(("kind", "requests, each asked twice"), report["num_cases"].items()),
        *_differences("Differences from plain decoding", report["differences"]),
        *_differences("Plain decoding itself, asked together and alone", report["unsteady"]),
        "<h2>Sampled texts</h2>",
        *_laws(report["laws"]),
        "<h2>Drafting</h2>",
        _table(
            ("counted by the engine", ""),
            {
                "mean acceptance length": f"{drafting['mean_acceptance_length']:.2f}",
                "drafted": drafting["num_drafted"],
                "accepted": drafting["num_accepted"],
                "cycles": drafting["num_cycles"],
            }.items(),
        ),
        _plot(drafting["accepted_per_position"], drafting["num_cycles"]),
        *(f"<p class=bad>{escape(finding)}</p>" for finding in report["findings"]),
        *(f"<p>{escape(note)}</p>" for note in report["notes"]),
    ]
    title = f"dflash2 verify: {verdict}"
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
    return f"{head}{''.join(parts)}</html>\n"


def _table(head: Sequence[str], rows: Any) -> str:
    cells = "".join(f"<tr><td>{escape(str(name))}</td><td>{escape(str(value))}</td></tr>" for name, value in rows)
    return f"<table><tr>{''.join(f'<th>{escape(title)}</th>' for title in head)}</tr>{cells}</table>"


def _differences(title: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    if not found:
        return [f"<p>{escape(title)}: none.</p>"]
    names = ("kind", "case", "way", "position", "expected", "found", "gap", "verdict")
    rows = "".join("<tr>" + "".join(f"<td>{escape(str(each[name]))}</td>" for name in names) + "</tr>" for each in found)
    return [f"<h3>{escape(title)}</h3><table><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>{rows}</table>"]


def _laws(laws: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not laws:
        return ["<p>Not looked at.</p>"]
    return [
        f"<h3>{escape(name)}: <span class={'good' if law['lossless'] else 'bad'}>"
        f"{'one law' if law['lossless'] else 'another law'}</span></h3>"
        + _table(("", ""), {key.replace("_", " "): _shown(value) for key, value in law.items()}.items())
        for name, law in laws.items()
    ]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plot(accepted: Sequence[int], cycles: int) -> str:
    """Share of the cycles in which the draft at each place of the block was accepted."""
    if not accepted or not cycles:
        return "<p>The engine does not tell accepted drafts by position.</p>"
    step = (WIDTH - MARGIN) / len(accepted)
    bars = []
    for i, count in enumerate(accepted):
        share = count / cycles
        high, left = share * (HEIGHT - 2 * MARGIN), MARGIN + i * step
        top = HEIGHT - MARGIN - high
        bars.append(f'<rect x="{left:.1f}" y="{top:.1f}" width="{step * 0.7:.1f}" height="{high:.1f}" fill="#3b6ea5"/>')
        bars.append(f'<text x="{left:.1f}" y="{top - 4:.1f}">{share:.0%}</text>')
        bars.append(f'<text x="{left:.1f}" y="{HEIGHT - MARGIN + 14}">draft {i + 1}</text>')
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="acceptance by position">{"".join(bars)}</svg>'
