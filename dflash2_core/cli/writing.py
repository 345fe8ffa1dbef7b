"""Files that a command leaves beside what it prints: looked at before the work, written after what was found is told."""

import os
from pathlib import Path

from dflash2_core.config.reading import placed
from dflash2_core.errors import Dflash2Error


def require_place(path: Path | None) -> None:
    """Raises Dflash2Error where no file can be written at `path`; None: none will be."""
    if path is None:
        return
    if path.is_dir():
        raise Dflash2Error(f"{placed(path)} is a folder: expected the name of a file to write")
    if not path.parent.is_dir():
        raise Dflash2Error(f"{placed(path)} cannot be written: there is no folder {placed(path.parent)}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Dflash2Error(f"{placed(path)} cannot be written: it is not for this user to write there")


def write(path: Path, content: str | bytes) -> None:
    """Text as UTF-8. Raises Dflash2Error where it cannot be written after all."""
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as problem:
        raise Dflash2Error(f"{placed(path)} could not be written: {problem.strerror or problem}") from None
