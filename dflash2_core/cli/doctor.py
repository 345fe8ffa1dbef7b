"""`dflash2 doctor`: what is wrong, or will be, with the engines of this machine and with a pair."""

import json
import os
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dflash2_core.cli.handing_on import handed_on
from dflash2_core.cli.telling import saying
from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import named, placed
from dflash2_core.diagnosis import LEVELS, Asked, Diagnosis, Finding, diagnose
from dflash2_core.diagnosis.document import as_document
from dflash2_core.diagnosis.facts import DrafterSide, EngineSide, TargetSide
from dflash2_core.diagnosis.memory import Memory
from dflash2_core.diagnosis.own_engine import OwnEngine
from dflash2_core.engines import OWN, engine_names, find_engine
from dflash2_core.errors import EngineError

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
PIPED = 100
"""Columns where there is no terminal."""
NO_PAIR = "Only the engines were looked at. For a pair: dflash2 doctor --target TARGET --drafter DRAFTER (folders, or GGUFs)"


def doctor(
    ctx: typer.Context,
    target: Annotated[Path | None, typer.Option(help="The target: its Hugging Face folder, or its GGUF.")] = None,
    drafter: Annotated[Path | None, typer.Option(help="The drafter: its folder, or its GGUF.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="Look at this engine alone; may be given again.")] = None,
    program: Annotated[
        Path | None, typer.Option(help="The program of the one engine named. Default: where its adapter finds it.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Requests at once, for the memory.")] = 1,
    context: Annotated[int | None, typer.Option(min=2, help="Positions of a request. Default: as many as both have.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Find what would keep a pair from drafting, cut its drafts or change its text; exit code 1 where there is an error.

    Each engine is asked in its own interpreter, which takes it some ten seconds.

    What stands behind -- is what the engine named with --engine is, or will be, started with.
    """
    names = list(dict.fromkeys(engine or [OWN, *engine_names()]))
    if program is not None and len(names) != 1:
        raise EngineError("--program says where one engine is: name that one with --engine")
    if program is not None and names == [OWN]:
        raise EngineError(f"the engine {OWN} runs where dflash2 does: leave --program out")
    asked = Asked(
        target=target,
        drafter=drafter,
        engines=tuple(engine or ()),
        arguments=handed_on(ctx),
        rows=parallel,
        context=context,
    )
    engines = [OwnEngine() if name == OWN else find_engine(name, program) for name in names]
    with saying(Console(stderr=True, quiet=as_json), "looking for engines") as doing:
        found = diagnose(asked, engines, os.environ, doing=doing)
    if as_json:
        print(json.dumps(as_document(found)))
    else:
        _show(_console(), found)
    if not found.sound:
        raise typer.Exit(1)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED)


def _show(console: Console, found: Diagnosis) -> None:
    if found.engines:
        console.print(_engines(found.engines))
        for side in found.engines:
            for state, places in _hooks(side):
                counted = f"{len(places)} of {len(side.report.hooks)} hooks"
                console.print(f"{side.name}, {counted}, {escape(state)}: [dim]{escape(_in_short(places))}[/dim]")
        console.print()
    if found.target is not None or found.drafter is not None:
        console.print(_pair(found))
        console.print()
    if found.blocks:
        console.print(_blocks(found))
        console.print()
    if found.findings:
        console.print(_findings(found.findings))
        console.print()
    if found.target is None and found.drafter is None:
        console.print(NO_PAIR)
    console.print(_summary(found))


def _engines(sides: tuple[EngineSide, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("engine", "version", "", "DFlash 2 by", "runs in"):
        table.add_column(name, overflow="fold")
    for side in sides:
        report = side.report
        if report.program is None:
            table.add_row(side.name, "not found", "", "", "")
            continue
        tested = "tested" if report.tested else "not tested"
        route = {"native": "itself", "plugin": "dflash2's plugin", "none": "nobody"}[report.route]
        version = escape(report.version or "unknown")
        table.add_row(side.name, version, tested if report.version else "", route, escape(_near(report.program)))
    return table


def _hooks(side: EngineSide) -> list[tuple[str, list[str]]]:
    """State -> the places that are in it."""
    by_state = sorted(side.report.hooks.items(), key=lambda item: item[1])
    return [(state, [place for place, _ in group]) for state, group in groupby(by_state, key=lambda item: item[1])]


def _in_short(places: list[str]) -> str:
    """`Class.one, .two, function`: without modules, a class named once for what follows it."""
    told, before = [], ""
    for name in map(_short, places):
        owner, dot, last = name.rpartition(".")
        told.append(f".{last}" if dot and owner == before else name)
        before = owner if dot else name
    return ", ".join(told)


def _short(place: str) -> str:
    """`package.module:Class.name` or `package.module.Class.name` without what is a module."""
    if ":" in place:
        return place.rpartition(":")[2]
    parts = place.split(".")
    classes = [i for i, part in enumerate(parts) if part.strip("_")[:1].isupper()]
    return ".".join(parts[classes[0] if classes else -1 :])


def _near(path: Path) -> str:
    """As it is typed here."""
    return placed(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _pair(found: Diagnosis) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(found):
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    return table


def _facts(found: Diagnosis) -> list[tuple[str, str]]:
    facts = []
    if found.target is not None:
        facts.append(("target", _target(found.target)))
    if found.drafter is not None:
        facts.append(("drafter", _drafter(found.drafter)))
        if found.drafter.config is not None:
            facts += _config(found.drafter.config)
        facts.append(("tokenizer", _tokenizers(found)))
        facts.append(("licence", ", ".join(map(named, dict.fromkeys(found.drafter.licences.values()))) or "not stated"))
    if found.memory is not None:
        facts.append(("memory", _memory(found.memory)))
    return facts


def _target(target: TargetSide) -> str:
    told = [placed(target.path), target.architecture or "unknown architecture", target.dtype or "unknown type"]
    if target.sizes is not None:
        sizes = target.sizes
        told.append(f"{sizes.num_layers} layers of width {sizes.hidden_size}, {sizes.vocab_size:,} ids")
    if target.context_length is not None:
        told.append(f"{target.context_length:,} positions")
    return ", ".join([*told, "chat template" if target.chat_template else "no chat template"])


def _drafter(drafter: DrafterSide) -> str:
    version = "" if drafter.config is None else f"DFlash {drafter.config.version}, "
    dtypes = ", ".join(drafter.dtypes) or "no weights"
    made_for = f", made for {named(drafter.base_model)}" if drafter.base_model else ""
    return f"{placed(drafter.path)}, {version}{drafter.layout}, {drafter.num_parameters:,} parameters in {dtypes}{made_for}"


def _config(config: DrafterConfig) -> list[tuple[str, str]]:
    windows = {"the whole context" if window is None else f"{window} positions" for window in config.layer_windows}
    causal = {"causal" if causal else "not causal" for causal in config.layer_causal}
    taps = ", ".join(map(str, config.target_layer_ids))
    of = "" if config.num_target_layers is None else f" of {config.num_target_layers}"
    return [
        ("block", f"{config.block_size} rows, {config.num_drafts} drafts; mask token {config.mask_token_id}"),
        ("taps", f"outputs of layers {taps}{of}, width {config.target_hidden_size}"),
        (
            "sees",
            f"{' or '.join(sorted(windows))}, {' or '.join(sorted(causal))}; {config.max_position_embeddings:,} positions",
        ),
    ]


def _tokenizers(found: Diagnosis) -> str:
    if found.drafter is None or found.drafter.tokenizer is None:
        return "the target's; the drafter brings none"
    if found.target is None or found.target.tokenizer is None:
        return f"the drafter's, {len(found.drafter.tokenizer.tokens):,} ids"
    differs = any(finding.subject == "tokenizer" for finding in found.findings)
    return "the two differ" if differs else f"the same in both, {len(found.drafter.tokenizer.tokens):,} ids compared by content"


def _memory(memory: Memory) -> str:
    return (
        f"weights {_size(memory.weights)}, keys and values {_size(memory.keys_and_values)} in {memory.dtype}: {memory.rows} x "
        f"{memory.positions:,} positions kept of {memory.context:,} ({_size(memory.whole_context)} where an engine keeps all)"
    )


def _blocks(found: Diagnosis) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("engine", "a whole block is asked for by", "left out, it takes"):
        table.add_column(name, overflow="fold")
    for words in found.blocks:
        table.add_row(words.engine, escape(words.count), escape(words.left_out))
    return table


def _findings(findings: tuple[Finding, ...]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for finding in findings:
        colour = COLOURS[finding.level]
        level, subject = f"[{colour}]{finding.level}[/{colour}]", f"[bold]{escape(finding.subject)}[/bold]"
        table.add_row(level, subject, escape(finding.reason))
        table.add_row("", "[dim]mend[/dim]", f"[dim]{escape(finding.mend)}[/dim]")
    return table


def _summary(found: Diagnosis) -> str:
    counts = {level: sum(finding.level == level for finding in found.findings) for level in LEVELS}
    told = ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items())
    colour = "green" if found.sound else "red"
    return f"[bold {colour}]{told}[/bold {colour}]"


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} GiB"
