"""The licence and the model card go with the weights: a drafter without them would be taken for one that is free."""

import shutil
from pathlib import Path

from dflash2_core.checkpoint.header import is_regular
from dflash2_core.config.documents import stays_inside
from dflash2_core.conversion.sources import Source

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
