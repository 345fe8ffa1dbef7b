"""`dflash2 verify`: is what an engine writes with a drafter what it writes without one?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dflash2_core.assets import tiny_pair
from dflash2_core.checkpoint.files import is_gguf
from dflash2_core.cli.export_gguf import exporter
from dflash2_core.cli.handing_on import handed_on
from dflash2_core.cli.telling import saying
from dflash2_core.cli.writing import require_place, write
from dflash2_core.config import DrafterConfig
from dflash2_core.conformance.cases import PER_KIND, Encode, encoder
from dflash2_core.conformance.identity import TIES
from dflash2_core.conformance.page import page
from dflash2_core.conformance.under_test import UnderTest
from dflash2_core.conformance.verifying import NUM_TOKENS, Trial, VerifyReport, judge
from dflash2_core.engines import OWN, EngineOptions
from dflash2_core.errors import EngineError

if TYPE_CHECKING:
    from dflash2_core.conformance.reference import Reference

SHOWN = 10  # differences, of each sort


def verify(
    ctx: typer.Context,
    target: Annotated[Path | None, typer.Argument(help="The target. Default: the embedded pair's.")] = None,
    drafter: Annotated[Path | None, typer.Argument(help="The drafter. Default: the embedded pair's.")] = None,
    engine: Annotated[str, typer.Option(help="transformers (this project's own), vllm, sglang or llama-cpp.")] = OWN,
    program: Annotated[Path | None, typer.Option(help="The engine's program. Default: where its adapter finds it.")] = None,
    plain: Annotated[str | None, typer.Option(help="URL of a running server of this engine, without the drafter.")] = None,
    speculative: Annotated[str | None, typer.Option(help="URL of a running server of this engine, with the drafter.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="The target's Hugging Face folder: its tokenizer and its law. Default: TARGET, where it is one."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Where the target's weights are not at hand: a folder with its tokenizer.json. Laws are compared by samples."
        ),
    ] = None,
    per_kind: Annotated[int, typer.Option(min=1, help="Greedy prompts of each kind of text, at most.")] = PER_KIND,
    tokens: Annotated[int, typer.Option(min=0, help="Sampled tokens to test; 0 leaves sampling out.")] = NUM_TOKENS,
    parallel: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    computes_in: Annotated[
        str, typer.Option(help=f"What the engine computes in, of {', '.join(TIES)}; where it is started here, it is told.")
    ] = "float32",
    alpha: Annotated[
        float | None,
        typer.Option(min=1e-300, max=0.5, help="Error rate of the sampled part. Default: 1e-6, by samples 1e-3."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML file, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Ask an engine with and without its drafter whether one can tell; exit code 0 lossless, 1 not, 2 could not run.

    What stands behind -- is handed on to the engine as it is.
    """
    require_place(html)
    if computes_in not in TIES:
        raise EngineError(f"--computes-in is {computes_in!r}: expected one of {', '.join(TIES)}")
    if engine == OWN and plain is None and computes_in != "float32":
        raise EngineError(f"the engine {OWN} is verified in float32, where nothing may differ: leave --computes-in out")
    if (plain is None) != (speculative is None):
        raise EngineError("--plain and --speculative belong together: give the URLs of two servers, or neither")
    if reference is not None and tokenizer is not None:
        raise EngineError("--reference has a tokenizer and a law, --tokenizer a tokenizer only: give one of them")
    if (target is None) != (drafter is None):
        raise EngineError("a target and its drafter belong together: give both, or neither for the embedded pair")
    target, drafter = target or tiny_pair().target, drafter or tiny_pair().drafter
    known: Reference | None = None
    encode: Encode
    if tokenizer is None:
        known = _reference(reference, target, drafter, parallel)
        encode = known.encode
    else:
        encode = encoder(tokenizer)
    urls = None if plain is None or speculative is None else (plain, speculative)
    options = EngineOptions(parallel=parallel, dtype=computes_in, extra=handed_on(ctx))
    tested = UnderTest(engine, target, drafter, options, known, program, urls)
    trial = Trial.of(encode, _num_drafts(drafter), num_tokens=tokens, has_law=known is not None, per_kind=per_kind)
    console = Console(stderr=True, quiet=as_json)
    with saying(console, "asking the target alone"), tested.plain() as subject:
        without = trial.ask_plain(subject, has_law=known is not None)
    with saying(console, "asking it with the drafter"), tested.drafted() as subject:
        drafted = trial.ask_drafted(subject)
    with saying(console, "holding what was written against what should have been"):
        of_core = None if engine == OWN or known is None else known.acceptance(trial.greedy)
        own = None if known is None else known.target
        report = judge(trial, without, drafted, target=own, of_core=of_core, alpha=alpha, tie=TIES[computes_in])
    facts = tested.facts()
    if as_json:
        print(json.dumps({"tested": facts} | report.to_dict()), flush=True)
    else:
        _show(Console(highlight=False), report, facts)
    if html is not None:
        write(html, page(report.to_dict(), facts))
    if not report.lossless:
        raise typer.Exit(1)


def _reference(asked: Path | None, target: Path, drafter: Path, parallel: int) -> "Reference":
    from dflash2_core.conformance.reference import Reference

    if asked is None and not target.is_dir():
        raise EngineError(
            f"{target} is no Hugging Face folder: give the target's with --reference, for its tokenizer and its law, or "
            "with --tokenizer a folder that has only its tokenizer.json"
        )
    return Reference(asked or target, drafter, parallel=parallel)


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
