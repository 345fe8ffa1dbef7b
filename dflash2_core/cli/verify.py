"""`dflash2 verify`: is what an engine writes with a drafter what it writes without one?"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dflash2_core.assets import tiny_pair
from dflash2_core.checkpoint.files import is_gguf
from dflash2_core.cli.export_gguf import exporter
from dflash2_core.config import DrafterConfig
from dflash2_core.conformance.identity import TIES
from dflash2_core.conformance.page import page
from dflash2_core.conformance.under_test import OWN, UnderTest
from dflash2_core.conformance.verifying import NUM_TOKENS, Trial, VerifyReport, judge
from dflash2_core.engines import EngineOptions
from dflash2_core.errors import EngineError

SHOWN = 10  # differences, of each sort


def verify(
    target: Annotated[Path | None, typer.Argument(help="The target. Default: the embedded pair's.")] = None,
    drafter: Annotated[Path | None, typer.Argument(help="The drafter. Default: the embedded pair's.")] = None,
    extra: Annotated[list[str] | None, typer.Argument(metavar="[-- ENGINE ARGUMENTS]", help="Handed on to the engine.")] = None,
    engine: Annotated[str, typer.Option(help="transformers (this project's own), vllm, sglang or llama-cpp.")] = OWN,
    program: Annotated[Path | None, typer.Option(help="The engine's program. Default: where its adapter finds it.")] = None,
    plain: Annotated[str | None, typer.Option(help="URL of a running server of this engine, without the drafter.")] = None,
    speculative: Annotated[str | None, typer.Option(help="URL of a running server of this engine, with the drafter.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="The target's Hugging Face folder: its tokenizer and its law. Default: TARGET, where it is one."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=0, help="Sampled tokens to test; 0 leaves sampling out.")] = NUM_TOKENS,
    parallel: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    computes_in: Annotated[str, typer.Option(help=f"What the engine computes in, of {', '.join(TIES)}.")] = "float32",
    alpha: Annotated[float, typer.Option(min=1e-300, max=0.5, help="Error rate of the sampled part.")] = 1e-6,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML file, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Ask an engine with and without its drafter whether one can tell; exit code 0 lossless, 1 not, 2 could not run."""
    from dflash2_core.conformance.reference import Reference

    if computes_in not in TIES:
        raise EngineError(f"--computes-in is {computes_in!r}: expected one of {', '.join(TIES)}")
    if (plain is None) != (speculative is None):
        raise EngineError("--plain and --speculative belong together: give the URLs of two servers, or neither")
    if (target is None) != (drafter is None):
        raise EngineError("a target and its drafter belong together: give both, or neither for the embedded pair")
    target, drafter = target or tiny_pair().target, drafter or tiny_pair().drafter
    known = Reference(_reference_folder(reference, target), drafter, parallel=parallel)
    urls = None if plain is None or speculative is None else (plain, speculative)
    options = EngineOptions(parallel=parallel, extra=tuple(extra or ()))
    tested = UnderTest(engine, target, drafter, options, known, program, urls)
    trial = Trial.of(known.encode, _num_drafts(drafter), num_tokens=tokens)
    console = Console(stderr=True, quiet=as_json)
    with console.status("asking the target alone"), tested.plain() as subject:
        without = trial.ask_plain(subject)
    with console.status("asking it with the drafter"), tested.drafted() as subject:
        drafted = trial.ask_drafted(subject)
    with console.status("holding every token against the target's own distribution"):
        of_core = None if engine == OWN else known.acceptance(trial.greedy)
        report = judge(trial, without, drafted, target=known.target, of_core=of_core, alpha=alpha, tie=TIES[computes_in])
    facts = tested.facts() | {"computes in": computes_in}
    if html is not None:
        html.write_text(page(report.to_dict(), facts), encoding="utf-8")
    if as_json:
        print(json.dumps({"tested": facts} | report.to_dict()))
    else:
        _show(Console(highlight=False), report, facts)
    if not report.lossless:
        raise typer.Exit(1)


def _reference_folder(asked: Path | None, target: Path) -> Path:
    if asked is not None:
        return asked
    if not target.is_dir():
        raise EngineError(
            f"{target} is no Hugging Face folder: give the target's with --reference, for its tokenizer and its law"
        )
    return target


def _num_drafts(drafter: Path) -> int:
    config = exporter().read(drafter)[0] if is_gguf(drafter) else DrafterConfig.from_pretrained(drafter)
    return int(config.num_drafts)


def _show(console: Console, report: VerifyReport, facts: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    for name in ("engine", "version", "route", "target", "drafter"):
        if name in facts:
            table.add_row(f"[bold]{name}[/bold]", escape(facts[name]))
    ways = 2 * sum(report.num_cases.values())
    ties = sum(each.verdict == "numeric tie" for each in report.differences)
    same = ways - len(report.differences)
    table.add_row("[bold]greedy[/bold]", f"{same} of {ways} texts identical, {ties} part at a tie, {ways - same - ties} differ")
    for name, law in report.laws.items():
        table.add_row(f"[bold]{escape(name)}[/bold]", escape(str(law)))
    drafting = report.drafting
    table.add_row(
        "[bold]drafting[/bold]",
        f"{drafting.num_drafted} drafted, {drafting.num_accepted} accepted, "
        f"{drafting.mean_acceptance_length:.2f} tokens a cycle",
    )
    console.print(table)
    for difference in report.differences[:SHOWN]:
        console.print(f"[red]differs[/red] {escape(str(difference))}")
    for difference in report.unsteady[:SHOWN]:
        console.print(f"[yellow]plain decoding differs under load[/yellow] {escape(str(difference))}")
    for finding in report.findings:
        console.print(f"[red]drafting[/red] {escape(finding)}")
    for note in report.notes:
        console.print(f"note: {escape(note)}")
    console.print("[bold green]lossless[/bold green]" if report.lossless else "[bold red]NOT lossless[/bold red]")
