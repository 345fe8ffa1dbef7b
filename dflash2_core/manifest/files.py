"""The files of a drafter's folder, and what tells one from another.

sha256 reads every byte: about a second a GB on one core of an AMD EPYC, or as long as the disk takes. Loading the weights reads
the same bytes, which then come from memory.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dflash2_core.checkpoint.files import INDEX, PICKLES
from dflash2_core.checkpoint.header import is_regular
from dflash2_core.config.documents import stays_inside
from dflash2_core.config.reading import placed
from dflash2_core.errors import CheckpointError

WEIGHTS = (".safetensors", ".gguf", *PICKLES)


@dataclass(frozen=True)
class Fingerprint:
    """sha256 in hex, size in bytes."""

    sha256: str
    size: int


def files_of(folder: Path) -> list[str]:
    """Names, with `/`, of all files below `folder` but hidden ones, sorted. CheckpointError for one that leads out of it."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or not is_regular(path):
            continue
        if not stays_inside(folder, path):
            raise CheckpointError(f"{placed(path)} leads out of the folder through a link: refused")
        found.append(name.as_posix())
    return found


def fingerprint(path: Path) -> Fingerprint:
    """CheckpointError where `path` cannot be read."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return Fingerprint(digest, file.tell())
    except OSError as problem:
        raise CheckpointError(f"{placed(path)} cannot be read: {problem.strerror or problem}") from None


def holds_weights(name: str) -> bool:
    """Whether a file of this name could be taken for weights, or say where they are."""
    return name.endswith(WEIGHTS) or name == INDEX
