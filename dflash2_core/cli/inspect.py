"""`dflash2 inspect`: what a checkpoint is, and everything that is wrong with it."""

import json
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dflash2_core.checkpoint.examination import Examination, examine
from dflash2_core.checkpoint.files import is_gguf
from dflash2_core.cli.export_gguf import exporter
from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import named, placed


def inspect(
    path: Annotated[Path, typer.Argument(help="Folder of a drafter (config.json and safetensors), or its GGUF.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Say what a drafter's checkpoint is and find everything wrong with it; exit code 1 if there is anything."""
    with Console(stderr=True).status("reading every weight"):
        found = exporter().examine(path) if is_gguf(path) else examine(path)
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        _show(Console(highlight=False), found)
    if found.findings:
        raise typer.Exit(1)


def _show(console: Console, found: Examination) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in _facts(found):
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(table)
    console.print()
    if not found.findings:
        console.print("no problem found")
    for finding in found.findings:
        console.print(f"[red]problem[/red] {escape(finding)}")


def _facts(found: Examination) -> list[tuple[str, str]]:
    config = found.config
    dtypes = ", ".join(
        f"{named(dtype)} {count / max(1, found.num_parameters):.0%}" for dtype, count in found.parameters_by_dtype.items()
    )
    return [
        ("checkpoint", f"{placed(found.path)} ({', '.join(map(named, found.files)) or 'no weights'})"),
        ("layout", found.layout),
        *(_described(config) if config is not None else [("config", "could not be read")]),
        ("parameters", f"{found.num_parameters:,} in {found.num_tensors} tensors"),
        ("weights", f"{_size(found.num_bytes)}, {dtypes or 'none'}"),
        ("of its own", ", ".join(found.own_tensors) or "nothing: embedding and head are the target's"),
        ("licence", named(found.licence) if found.licence else "not stated"),
    ]


def _described(config: DrafterConfig) -> list[tuple[str, str]]:
    taps = ", ".join(map(str, config.target_layer_ids))
    of = "" if config.num_target_layers is None else f" of {config.num_target_layers}"
    return [
        ("drafter", f"DFlash {config.version}"),
        ("block", f"block {config.block_size} = {config.num_drafts} drafts, mask token {config.mask_token_id}"),
        ("taps", f"outputs of target layers {taps}{of}, width {config.target_hidden_size}"),
        ("layers", _layers(config)),
        ("width", f"hidden {config.hidden_size}, MLP {config.intermediate_size}, vocabulary {config.vocab_size}"),
        (
            "attention",
            f"{config.num_attention_heads} heads, {config.num_key_value_heads} for keys and values, of {config.head_dim}",
        ),
        ("rope", ", ".join(f"{key.removeprefix('rope_')} {_plain(value)}" for key, value in config.rope_parameters.items())),
        ("convolution", _convolution(config)),
        ("selector", _selector(config)),
        ("logits", _logits(config)),
    ]


def _layers(config: DrafterConfig) -> str:
    kinds = [
        f"{'whole context' if window is None else f'window {window}'}, {'causal' if causal else 'not causal'}"
        for window, causal in zip(config.layer_windows, config.layer_causal, strict=True)
    ]
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    if len(runs) == 1:
        return f"{len(kinds)}, each {kinds[0]}"
    return "; ".join(f"{count} of {kind}" for kind, count in runs)


def _convolution(config: DrafterConfig) -> str:
    if config.conv_kernel_size is None:
        return "none"
    return f"{config.conv_kernel_size} taps, groups of {config.conv_group_size}"


def _selector(config: DrafterConfig) -> str:
    if config.selector_rank is None:
        return "none"
    return f"rank {config.selector_rank}, {config.selector_top_k} candidates"


def _logits(config: DrafterConfig) -> str:
    cap = "no soft cap" if config.final_logit_softcapping is None else f"soft cap {config.final_logit_softcapping:g}"
    return f"times {config.output_multiplier:g}, {cap}, embedding times {config.input_embedding_scale:g}"


def _plain(value: object) -> str:
    return f"{value:,.10g}" if isinstance(value, float) else str(value)


def _size(num_bytes: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024  # type: ignore[assignment]
    return f"{num_bytes:.4g} GiB"
