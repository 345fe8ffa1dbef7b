"""The pair's model card, written from the figures of a build."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from recipes.tiny_pair.corpus import DOMAINS

NAMES = {
    "dflash2": "DFlash 2",
    "selector_off": "DFlash 2, selector off",
    "convolution_off": "DFlash 2, convolution off",
    "dflash1": "DFlash 1",
}


OF_A_FOLDER = """---
license: apache-2.0
---

The {name} of the tiny pair that travels with `dflash2`. What it is, and what it was made from, stands in the pair's own card,
one folder above this one.
"""


def write_folder_card(folder: Path) -> None:
    """The card of the target or the drafter by itself: its licence travels with it."""
    (folder / "README.md").write_text(OF_A_FOLDER.format(name=folder.name), encoding="utf-8")


def write_card(work: Path, output: Path, ablations: Sequence[str], *, unloop_minutes: float, measured: int) -> None:
    """work: the folder that `build` filled; measured: prompts of each domain that its figures are over."""
    template = (Path(__file__).parent / "card.md").read_text(encoding="utf-8")
    figures, drafting, history = _read(work / "full" / "figures.json"), _heldout(work, "full"), work / "history.md"
    text = template.format(
        target_parameters=f"{_parameters(work / 'target'):,}",
        drafter_parameters=f"{_parameters(work / 'full' / 'drafter'):,}",
        selector_rank=_read(work / "full" / "drafter" / "config.json")["dflash_config"]["selector_rank"],
        unloop_minutes=unloop_minutes,
        answered=f"{len((work / 'training_prompts.jsonl').read_text(encoding='utf-8').splitlines()):,}",
        measured=measured,
        losses=_losses(work),
        acceptance=_acceptance(figures),
        positions=" · ".join(f"{share:.0%}" for share in figures["accepted_by_position"]),
        recall=" · ".join(f"{share:.1%}" for share in drafting["recall"]),
        oracle=f"{drafting['oracle_length']:.2f}",
        minutes=drafting["seconds"] / 60,
        steps=f"{drafting['steps']:,}",
        goals=_goals(figures["acceptance_length"]),
        history=history.read_text(encoding="utf-8") if history.is_file() else "",
        repeats=", ".join(f"{domain} {figures['repeated_8_grams'][domain]:.0%}" for domain in DOMAINS),
        ablations=_ablations(work, ablations),
    )
    output.write_text(text, encoding="utf-8")


def _losses(work: Path) -> str:
    losses = _read(work / "target_report.json")["heldout"]
    rows = ((domain, f"{losses[domain]['nats_per_token']:.2f}", f"{losses[domain]['bits_per_byte']:.2f}") for domain in DOMAINS)
    return _table(("", "nats per token", "bits per byte"), rows)


def _acceptance(figures: dict[str, Any]) -> str:
    lengths = figures["acceptance_length"]
    rows = ((f"T = {temperature}", *_row(lengths[temperature])) for temperature in lengths)
    return _table(("", *DOMAINS, "all"), rows)


def _goals(lengths: dict[str, dict[str, float]]) -> str:
    """Says plainly what was aimed at and what of it was missed."""
    reached = {
        "3.2 greedily over all prompts": lengths["0.0"]["all"] >= 3.2,
        "2.8 greedily in each domain": min(lengths["0.0"].values()) >= 2.8,
        "2.0 at T = 0.7": lengths["0.7"]["all"] >= 2.0,
    }
    missed = [goal for goal, is_reached in reached.items() if not is_reached]
    return f"The goals were {', '.join(reached)}; **missed: {', '.join(missed) if missed else 'none'}**."


def _ablations(work: Path, names: Sequence[str]) -> str:
    rows = []
    measured = [name for name in names if (work / name / "figures.json").is_file()]
    if not measured:
        return "Not measured yet."
    for name in measured:
        lengths, heldout = _read(work / name / "figures.json")["acceptance_length"], _heldout(work, name)
        sampled = f"{lengths['0.7']['all']:.2f}"
        rows.append((NAMES[name], *_row(lengths["0.0"]), sampled, f"{heldout['oracle_length']:.2f}", str(heldout["steps"])))
    conditions = (
        f"The same data, seed and minutes ({heldout['seconds'] / 60:.2g}) for each; over half of the prompts, greedily "
        "but where stated. DFlash 1 has the TV of the whole vocabulary in its loss: it has no candidates.\n\n"
    )
    return conditions + _table(("", *DOMAINS, "all", "all, T = 0.7", "oracle", "steps"), rows)


def _row(lengths: dict[str, float]) -> list[str]:
    return [f"{lengths[name]:.2f}" for name in (*DOMAINS, "all")]


def _heldout(work: Path, name: str) -> dict[str, Any]:
    """The last record with held-out figures of a run's log, with the step it was taken at."""
    records = map(json.loads, (work / name / "log.jsonl").read_text().splitlines())
    last = [record for record in records if "heldout" in record][-1]
    return {**last["heldout"], "steps": last["step"], "seconds": last["seconds"]}


def _parameters(folder: Path) -> int:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["-"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
