"""`dflash2 bench`: what a drafter gains, in every engine that is here."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dflash2_core.assets import held_out_prompts, tiny_pair
from dflash2_core.cli.handing_on import handed_on
from dflash2_core.cli.opening import as_manifested
from dflash2_core.cli.telling import saying
from dflash2_core.cli.writing import require_place, write
from dflash2_core.config import DrafterConfig
from dflash2_core.conformance.under_test import UnderTest
from dflash2_core.engines import DTYPES, OWN, EngineOptions, engine_names, find_engine
from dflash2_core.errors import Dflash2Error, EngineError

if TYPE_CHECKING:
    from dflash2_core.benchmarks.benching import BenchReport
    from dflash2_core.conformance.reference import Reference

NUM_PROMPTS = 16
OF_LLAMA_CPP = "llama-cpp"
OF_TWO = 0.4
"""Share of the memory for each of two servers that run at once."""


def bench(
    context: typer.Context,
    target: Annotated[Path | None, typer.Option(help="The target's Hugging Face folder. Default: the embedded pair's.")] = None,
    drafter: Annotated[Path | None, typer.Option(help="The drafter's folder. Default: the embedded pair's.")] = None,
    target_gguf: Annotated[Path | None, typer.Option(help="The same target as a GGUF, which llama-cpp needs.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="transformers (this project's own), vllm, sglang, llama-cpp. Default: all found.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts of your own, as in `dflash2 train`. Default: sixteen built-in ones.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Medians are over these.")] = 3,
    batches: Annotated[str, typer.Option(help="Numbers of requests at once.")] = "1,4,16",
    max_new_tokens: Annotated[int, typer.Option(min=3, help="Of each request; less leaves no room for a draft.")] = 128,
    dtype: Annotated[
        str | None,
        typer.Option(
            help=f"What is computed in: {', '.join(DTYPES)}. Default: float32 for the embedded pair, else as the engine has it."
        ),
    ] = None,
    memory: Annotated[
        float,
        typer.Option(help="Share of the memory for each of the two servers: of all (vLLM), of what is free then (SGLang)."),
    ] = OF_TWO,
    html: Annotated[Path | None, typer.Option(help="Write the report with its charts as one HTML file, too.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the charts as a picture, too (the extra bench).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with every sample, nothing else.")] = False,
) -> None:
    """Time engines with and without the drafter, side by side; exit code 1 where nothing was drafted, or texts differ."""
    for place in (html, png):
        require_place(place)
    import transformers

    from dflash2_core.benchmarks.benching import BenchReport, measure
    from dflash2_core.benchmarks.charts import charts
    from dflash2_core.benchmarks.drawing import png as drawn
    from dflash2_core.benchmarks.drawing import stacked
    from dflash2_core.benchmarks.machine import described
    from dflash2_core.benchmarks.page import page
    from dflash2_core.conformance.reference import Reference

    transformers.utils.logging.disable_progress_bar()
    if png is not None:
        import PIL  # noqa: F401, better missed now than after the run
    if (target is None) != (drafter is None):
        raise EngineError("a target and its drafter belong together: give both, or neither for the embedded pair")
    dtype = dtype or ("float32" if target is None else None)  # below it ties part, and texts with them
    target, drafter = target or tiny_pair().target, as_manifested(drafter or tiny_pair().drafter)
    extra = handed_on(context)
    if extra and len(engine or ()) != 1:
        raise EngineError("engine arguments belong to one engine: name it with --engine")
    sizes, num_drafts = _sizes(batches), DrafterConfig.from_pretrained(drafter).num_drafts
    console = Console(stderr=True, quiet=as_json)
    with saying(console, "looking for engines"):
        names, left_out = (list(dict.fromkeys(engine)), {}) if engine else _found()
    options = EngineOptions(parallel=max(sizes), dtype=dtype, memory=memory, extra=extra)
    known = Reference(target, drafter, parallel=max(sizes), dtype=dtype or "auto")
    asked, measured = _prompts(prompts, known), []
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as bar:
        for name in names:
            if not console.is_terminal:
                console.print(f"measuring {name} ...")
            task = bar.add_task(name, total=len(sizes) * rounds)
            of_engine = target_gguf if name == OF_LLAMA_CPP and target_gguf is not None else target
            try:
                tested = UnderTest(name, of_engine, drafter, options, known)
                measured.append(
                    measure(
                        tested,
                        asked,
                        sizes=sizes,
                        rounds=rounds,
                        new_tokens=max_new_tokens,
                        num_drafts=num_drafts,
                        after_round=partial(bar.advance, task),
                    )
                )
            except Dflash2Error as problem:
                if engine:
                    raise
                left_out[name] = str(problem)
    if not measured:
        raise EngineError("nothing could be measured: " + "; ".join(f"{name}: {why}" for name, why in left_out.items()))
    report = BenchReport(
        machine=described(),
        rounds=rounds,
        num_prompts=len(asked),
        new_tokens=max_new_tokens,
        measured=measured,
        left_out=left_out,
    )
    if as_json:
        print(json.dumps(report.to_dict()), flush=True)
    else:
        _show(Console(highlight=False), report)
    if html is not None:
        write(html, page(report))
    if png is not None:
        write(png, drawn(stacked(charts(report))))
    if report.findings:
        raise typer.Exit(1)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise EngineError(f"--batches is {text!r}: expected numbers of requests at once, as 1,4,16")
    return sizes


def _found() -> tuple[list[str], dict[str, str]]:
    """The core's own engine and every other that its adapter can use; the rest with the reason."""
    names, left_out = [OWN], {}
    for name in engine_names():
        if problems := find_engine(name).probe().problems:
            left_out[name] = problems[0]
        else:
            names.append(name)
    return names, left_out


def _prompts(path: Path | None, known: "Reference") -> Sequence[Sequence[int]]:
    if path is not None:
        from dflash2_core.training.prompts import read_prompts

        return read_prompts(path, known.target.tokenizer)
    texts = [prompt["text"] for prompt in held_out_prompts()]
    return [ids for text in texts[:: len(texts) // NUM_PROMPTS] if len(ids := known.encode(text)) > 1][:NUM_PROMPTS]


def _show(console: Console, report: "BenchReport") -> None:
    table = Table(
        caption_justify="left", caption=f"{report.machine}; {report.num_prompts} prompts, medians of {report.rounds} rounds"
    )
    for title in ("engine", "at once", "speed-up", "tokens/s", "plain", "acceptance", "same"):
        table.add_column(title, justify="left" if title == "engine" else "right", no_wrap=True)
    for measured in report.measured:
        for batch in measured.batches:
            speeds = batch.to_dict()["tokens_per_s"]
            table.add_row(
                measured.engine,
                str(batch.size),
                f"{batch.speed_up:.2f}",
                f"{speeds['drafted']:.1f}",
                f"{speeds['plain']:.1f}",
                f"{batch.acceptance.mean_acceptance_length:.2f}",
                f"{batch.num_identical}/{batch.num_texts}",
            )
    console.print(table)
    for name, reason in report.left_out.items():
        console.print(f"[yellow]not measured[/yellow] {escape(name)}: {escape(reason)}")
    for finding in report.findings:
        console.print(f"[red]finding[/red] {escape(finding)}")
