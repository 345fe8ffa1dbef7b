"""`dflash2 generate`: text from a target with its drafter, what the drafting brought, and whether the text is the same."""

import json
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.assets import DEMO_PROMPTS, tiny_pair
from dflash2_core.cli.opening import as_manifested
from dflash2_core.errors import SamplingError
from dflash2_core.sampling import SamplingParams

if TYPE_CHECKING:
    from dflash2_core.transformers_engine import Completion, TransformersEngine


LOW_PRECISION = (
    "in {dtype} a pass over a block rounds otherwise than passes over single tokens, so that near ties may fall either way: "
    "compare with --dtype float32"
)


@dataclass(kw_only=True)
class Outcome:
    """One prompt's completion, and the plain one beside it if asked for."""

    completion: "Completion"
    seconds: float
    plain: "Completion | None" = None
    plain_seconds: float | None = None

    @property
    def identical(self) -> bool | None:
        return None if self.plain is None else self.plain.token_ids == self.completion.token_ids

    def to_dict(self) -> dict[str, Any]:
        completion = self.completion
        timing = {"seconds": self.seconds, "tokens_per_second": len(completion.token_ids) / self.seconds}
        if self.plain is not None and self.plain_seconds is not None:
            timing["plain_seconds"] = self.plain_seconds
            timing["plain_tokens_per_second"] = len(self.plain.token_ids) / self.plain_seconds
        return {
            "text": completion.text,
            "token_ids": completion.token_ids,
            "finish_reason": completion.finish_reason,
            "plain_identical": self.identical,
            "stats": completion.stats.to_dict(),
            "timing": timing,
        }


def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="What to continue; - reads it from standard input. Default: three examples."),
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Folder of the target. Default: the embedded tiny one.")] = None,
    drafter: Annotated[
        Path | None, typer.Option(help="Folder of the drafter. Default: the embedded one for the embedded target.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly too and state whether the ids are identical.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 is off.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampled text repeatable.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of tokens per prompt.")] = 128,
    block_size: Annotated[
        int | None,
        typer.Option(help="Rows of a block, anchor included; 1 turns drafting off. Default: the checkpoint's."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object (a list for several prompts), nothing else.")
    ] = False,
) -> None:
    """Write text with a target and its drafter, token for token what the target alone would write."""
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, max_new_tokens=max_new_tokens
    )
    if compare and not params.is_greedy:
        raise SamplingError("--compare needs temperature 0: above it the two runs are equal in law, not token by token")
    texts = _prompts(prompts, target)
    warnings.showwarning = lambda message, *_, **__: print(f"dflash2: {message}", file=sys.stderr)
    engine, plain = _engines(target, drafter, dtype=dtype, device=device, block_size=block_size, compare=compare)
    console = Console(highlight=False)
    outcomes = []
    for text in texts:
        outcomes.append(_run(engine, plain, text, params, console=None if as_json else console))
        if not as_json:
            _report(console, outcomes[-1])
    if as_json:
        results = [outcome.to_dict() for outcome in outcomes]
        print(json.dumps(results[0] if len(results) == 1 else results, ensure_ascii=False))
    elif len(outcomes) > 1 or compare:
        console.print(_summary(outcomes), soft_wrap=True)
    if any(outcome.identical is False for outcome in outcomes):
        if engine.target.dtype.itemsize < 4:
            print(f"dflash2: {LOW_PRECISION.format(dtype=engine.target.dtype)}", file=sys.stderr)
        raise typer.Exit(1)


def _prompts(prompts: list[str] | None, target: Path | None) -> list[str]:
    if prompts:
        texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
        if not all(texts):
            raise SamplingError("the prompt is empty: give at least one character")
        return texts
    if target is not None:
        raise SamplingError('no prompt was given: dflash2 generate --target FOLDER "Once upon a time"')
    return list(DEMO_PROMPTS)


def _engines(
    target: Path | None, drafter: Path | None, *, dtype: str, device: str, block_size: int | None, compare: bool
) -> tuple["TransformersEngine", "TransformersEngine | None"]:
    """The engine, and a plain one over the same target model."""
    import transformers

    from dflash2_core.drafter import load_drafter
    from dflash2_core.transformers_engine import Target, TransformersEngine

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    if target is None:
        pair = tiny_pair()
        target, drafter = pair.target, drafter or pair.drafter
    model = Target.from_pretrained(target, dtype=dtype, device=device)
    loaded = None if drafter is None else load_drafter(as_manifested(drafter), dtype=model.dtype, device=model.device)
    engine = TransformersEngine(model, loaded, block_size=block_size)
    return engine, TransformersEngine(model) if compare else None


def _run(
    engine: "TransformersEngine",
    plain: "TransformersEngine | None",
    prompt: str,
    params: SamplingParams,
    *,
    console: Console | None,
) -> Outcome:
    start = time.perf_counter()
    if console is not None:
        console.rule(style="dim")
        _write(f"\033[2m{prompt}\033[0m" if sys.stdout.isatty() else prompt)
    for chunk in engine.stream(prompt, params):
        if console is not None:
            _write(chunk.text)
        completion = chunk.completion
    assert completion is not None
    outcome = Outcome(completion=completion, seconds=time.perf_counter() - start)
    if console is not None:
        console.print()
    if plain is not None:
        start = time.perf_counter()
        outcome.plain = plain.generate(prompt, params)[0]
        outcome.plain_seconds = time.perf_counter() - start
    return outcome


def _write(text: str) -> None:
    """As it is: a console of rich would wrap it and read tabs and :names: in it."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _report(console: Console, outcome: Outcome) -> None:
    stats = outcome.completion.stats
    table = Table.grid(padding=(0, 2))
    for name, value in _facts(outcome, stats):
        table.add_row(f"[bold]{name}[/bold]", value)
    console.print()
    console.print(table)


def _facts(outcome: Outcome, stats: AcceptanceStats) -> list[tuple[str, str]]:
    result = outcome.to_dict()["timing"]
    tokens = len(outcome.completion.token_ids)
    facts = [("tokens", f"{tokens} ({outcome.completion.finish_reason}) · {result['tokens_per_second']:.0f} per second")]
    if stats.num_cycles:
        rates = [a / d for a, d in zip(stats.accepted_per_position, stats.drafted_per_position, strict=True) if d]
        facts.append(("acceptance length", f"{stats.mean_acceptance_length:.2f} tokens per cycle, {stats.num_cycles} cycles"))
        facts.append(("by position", " ".join(f"{rate:.0%}" for rate in rates)))
    if stats.skipped:
        facts.append(("passes without drafts", ", ".join(f"{n} ({why})" for why, n in stats.skipped.items())))
    if outcome.identical is not None:
        same = "identical to plain decoding" if outcome.identical else "[red]DIFFERS from plain decoding[/red]"
        facts.append(("compared", f"{same} ({result['plain_tokens_per_second']:.0f} tokens per second)"))
    return facts


def _summary(outcomes: list[Outcome]) -> str:
    """The line a newcomer understands."""
    stats = AcceptanceStats.total(outcome.completion.stats for outcome in outcomes)
    written = sum(len(outcome.completion.token_ids) for outcome in outcomes)
    per_pass = (stats.num_committed + stats.skipped.total()) / max(1, stats.num_target_passes)
    per_second = written / sum(outcome.seconds for outcome in outcomes)
    parts = [f"{per_pass:.1f} tokens per target pass", f"{per_second:.0f} tokens per second"]
    if outcomes[0].plain is not None:
        same = sum(bool(outcome.identical) for outcome in outcomes)
        plain_seconds = sum(outcome.plain_seconds or 0.0 for outcome in outcomes)
        plain_written = sum(len(outcome.plain.token_ids) for outcome in outcomes if outcome.plain)
        parts.insert(0, f"identical: {same} of {len(outcomes)}")
        parts.append(f"the target alone: 1 token per pass, {plain_written / plain_seconds:.0f} per second")
    return " · ".join(parts)
