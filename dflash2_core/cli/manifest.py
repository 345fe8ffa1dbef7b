"""`dflash2 manifest`: write down what a drafter's files are, or check that they still are."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dflash2_core.checkpoint import open_checkpoint
from dflash2_core.checkpoint.examination import stated
from dflash2_core.config.reading import named, placed
from dflash2_core.errors import CheckpointError
from dflash2_core.manifest import NAME, Manifest, differences, has_manifest


def manifest(
    drafter: Annotated[Path, typer.Argument(help="Folder of a drafter.")],
    base_model: Annotated[
        str | None, typer.Option(help="The target it was made for. Default: base_model of the model card.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="The target's revision: a commit or a tag.")] = None,
    licence: Annotated[str | None, typer.Option(help="Of the drafter. Default: license of the model card.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 where a file is not what the manifest says.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Write dflash2_manifest.json beside a drafter: sha256 and size of every file, what it was made for, licence, block, taps.

    Where it is there, generate, serve, export-gguf and convert refuse a drafter of which a byte has changed.
    """
    if check:
        _check(drafter, as_json)
        return
    with Console(stderr=True).status("reading every file"):
        checkpoint = open_checkpoint(drafter)
        found = Manifest.of(
            drafter,
            checkpoint.config,
            base_model=base_model or stated(drafter, "base_model"),
            base_model_revision=revision,
            licence=licence or stated(drafter, "license"),
        )
        path = found.write(drafter)
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    size = sum(entry.size for entry in found.files.values())
    print(f"{placed(path)}: {len(found.files)} files, {size:,} bytes")
    print(f"base model {_told(found.base_model)}, revision {_told(found.base_model_revision)}, licence {_told(found.licence)}")


def _check(drafter: Path, as_json: bool) -> None:
    if not has_manifest(drafter):
        raise CheckpointError(f"{placed(drafter)} has no {NAME}: dflash2 manifest {placed(drafter)} writes one")
    with Console(stderr=True).status("reading every file"):
        found = list(differences(drafter))
        files = Manifest.read(drafter).files
    if as_json:
        print(json.dumps({"path": str(drafter / NAME), "num_files": len(files), "findings": found}))
    elif found:
        for finding in found:
            print(f"differs: {finding}")
    else:
        print(f"{len(files)} files are as the manifest says")
    if found:
        raise typer.Exit(1)


def _told(text: str | None) -> str:
    return "not stated" if text is None else named(text)
