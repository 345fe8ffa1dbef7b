"""Licence, model card and manifest go with the weights: a drafter without them would be taken for one that is free."""

import shutil
from pathlib import Path

from dflash2_core.checkpoint.header import is_regular
from dflash2_core.config.documents import stays_inside
from dflash2_core.conversion.sources import Source
from dflash2_core.manifest import Manifest, has_manifest

CARD = "README.md"
LICENCES = ("LICENSE", "LICENCE", "NOTICE", "COPYING")


def carry_cards(source: Source, folder: Path) -> list[str]:
    """Copy them into `folder`, or write down what a GGUF states of them; returns the names of the files."""
    if not source.path.is_dir():
        return _written_down(source, folder)
    found = [file for file in sorted(source.path.iterdir()) if _travels(file)]
    for file in found:
        shutil.copyfile(file, folder / file.name)
    return [file.name for file in found]


def carry_manifest(source: Source, folder: Path) -> None:
    """Where the source has one, the result gets its own, made for the same target under the same licence."""
    if has_manifest(source.path):
        was = Manifest.read(source.path)
        stated = {name: getattr(was, name) for name in ("base_model", "base_model_revision", "licence")}
        Manifest.of(folder, source.config, **stated).write(folder)


def _travels(file: Path) -> bool:
    named = file.name == CARD or file.name.upper().startswith(LICENCES)
    return named and is_regular(file) and stays_inside(file.parent, file)


def _written_down(source: Source, folder: Path) -> list[str]:
    stated = {"license": source.licence, "base_model": source.base_model}
    lines = [f"{name}: {value}" for name, value in stated.items() if value is not None and value.isprintable()]
    if not lines:
        return []
    (folder / CARD).write_text("\n".join(["---", *lines, "---", ""]))
    return [CARD]
