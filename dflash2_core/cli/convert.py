"""`dflash2 convert`: the same drafter in another layout, or a refusal that names what would be lost."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from dflash2_core.checkpoint.files import CONFIG, is_gguf
from dflash2_core.cli.export_gguf import OUTTYPES, exporter
from dflash2_core.cli.opening import as_manifested
from dflash2_core.config import DrafterConfig
from dflash2_core.config.documents import read_object
from dflash2_core.config.reading import placed
from dflash2_core.conversion import Converted, Source, convert, exact_outtype, open_source
from dflash2_core.conversion.types import KEEP, dtype_named
from dflash2_core.errors import CheckpointError, CompatibilityError

Layout = Literal["zlab", "speculators", "gguf"]


def convert_command(
    source: Annotated[Path, typer.Argument(help="A drafter: its folder, of either layout, or its GGUF.")],
    out: Annotated[Path, typer.Argument(help="The folder, or the GGUF, that is written; nothing may be there yet.")],
    to: Annotated[Layout, typer.Option("--to", help="The layout that is wanted.")],
    target: Annotated[
        str | None,
        typer.Option(help="The target. gguf needs its GGUF or folder, for the tokenizer; speculators writes its name down."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help=f"{KEEP}: the bits stay as they are. Else float32, bfloat16, float16; for gguf {OUTTYPES}.")
    ] = KEEP,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Write a drafter in another layout: z-lab's and speculators' folders, llama.cpp's GGUF.

    What the layout cannot say is refused by name; what was written is read back and compared. Notes tell what is not as it was.
    """
    with Console(stderr=True).status("converting"):
        opened = exporter().restored(source) if is_gguf(source) else open_source(as_manifested(source))
        if to == "gguf":
            done = _to_gguf(opened, out, target, dtype)
        else:
            verifier = _verifier(target) if target is not None and to == "speculators" else None
            done = convert(opened, out, layout=to, dtype=dtype_named(dtype), verifier=verifier)
    if as_json:
        print(json.dumps(done.to_dict()))
        return
    types = ", ".join(f"{name} {count:,}" for name, count in done.parameters_by_type.items())
    print(f"{placed(done.path)}: layout {done.layout}, {done.num_tensors} tensors ({types}), {done.num_bytes:,} bytes")
    for note in done.notes:
        print(f"note: {note}")


def _to_gguf(source: Source, out: Path, target: str | None, dtype: str) -> Converted:
    if source.layout == "gguf":
        raise CompatibilityError(f"{placed(source.path)} is a GGUF already: llama-quantize changes the type of its weights")
    if target is None:
        raise CompatibilityError("a GGUF holds the target's tokenizer: give --target, the target's GGUF or its folder")
    if out.exists():
        raise CheckpointError(f"{placed(out)} is there already: choose another name")
    outtype = exact_outtype(source) if dtype == KEEP else dtype
    done = exporter().export(source.path, out, tokenizer_from=target, outtype=outtype)
    written, _ = exporter().read(out)
    return Converted(
        path=done.path,
        layout="gguf",
        num_tensors=done.num_tensors,
        num_bytes=done.num_bytes,
        parameters_by_type=done.parameters_by_type,
        notes=_differences(source.config, written),
    )


def _differences(source: DrafterConfig, written: DrafterConfig) -> list[str]:
    """A GGUF keeps numbers as float32, and special tokens as the target's tokenizer has them."""
    pairs = {field.name: (getattr(source, field.name), getattr(written, field.name)) for field in fields(source)}
    return [f"{name} was {old} and is {new}" for name, (old, new) in pairs.items() if old != new]


def _verifier(target: str) -> dict[str, Any]:
    """What speculators keeps of a target, which is named as that package finds it: a folder, or a name on a hub."""
    folder = Path(target)
    if not folder.is_dir():
        return {"name_or_path": target, "architectures": []}
    architectures = read_object(folder / CONFIG, CheckpointError).get("architectures") or []
    return {"name_or_path": str(folder.resolve()), "architectures": architectures}
