"""`dflash2 export-gguf`: a drafter as a GGUF that llama.cpp runs."""

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dflash2_core.cli.opening import as_manifested
from dflash2_core.config.reading import placed

OUTTYPES = "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1"


def exporter() -> Any:
    """The package `gguf_export`, found when a command needs it: the core itself works without it and without `gguf`."""
    return import_module("gguf_export")


def export_gguf(
    drafter: Annotated[Path, typer.Argument(help="Folder of a drafter: config.json and safetensors.")],
    tokenizer_from: Annotated[
        Path, typer.Option("--tokenizer-from", metavar="TARGET", help="The target: its GGUF, or its Hugging Face folder.")
    ],
    outtype: Annotated[str, typer.Option(help=f"{OUTTYPES}. Norms and base kernels are f32 always.")] = "bf16",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file. Default: DRAFTER-OUTTYPE.gguf in this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Write a drafter as a GGUF for llama-server; everything is checked before anything is written."""
    gguf_export = exporter()
    as_manifested(drafter)
    path = output or Path(f"{drafter.resolve().name}-{outtype}.gguf")
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("opening", total=1.0)
        done = gguf_export.export(
            drafter,
            path,
            tokenizer_from=tokenizer_from,
            outtype=outtype,
            progress=lambda doing, share: bar.update(task, description=doing, completed=share),
        )
    types = ", ".join(f"{name} {count:,}" for name, count in done.parameters_by_type.items())
    if as_json:
        told = {"path": str(done.path), "num_bytes": done.num_bytes, "num_tensors": done.num_tensors}
        print(json.dumps({**told, "parameters_by_type": done.parameters_by_type, "target": done.architecture}))
    else:
        print(f"{placed(done.path)}: {done.num_tensors} tensors ({types}), {done.num_bytes:,} bytes, for {done.architecture}")
