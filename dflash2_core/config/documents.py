"""A JSON document from disk, bounded in size and strict: untrusted input at the door."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash2_core.config.reading import placed, shown
from dflash2_core.errors import Dflash2Error

MAX_BYTES = 16 * 2**20


def read_object(path: Path, error: type[Dflash2Error]) -> dict[str, Any]:
    """The object in the JSON file `path`; anything else raises `error` with a sentence."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise error(f"{placed(path)} has {size} bytes; a config or index has at most {MAX_BYTES}")
        raw = path.read_bytes()
    except OSError as problem:
        raise error(f"{placed(path)} cannot be read: {problem.strerror or problem}") from None
    return parse_object(raw, placed(path), error)


def parse_object(raw: bytes, where: str, error: type[Dflash2Error]) -> dict[str, Any]:
    """The JSON object in `raw`; `where` names it in errors. Duplicate keys are an error, not last-one-wins."""
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as problem:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        reason = "it nests too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise error(f"{where} is not valid JSON: {reason}") from None
    if not isinstance(document, dict):
        raise error(f"{where} holds a {type(document).__name__}, expected a JSON object")
    return document


def stays_inside(folder: Path, file: Path) -> bool:
    """Whether `file`, links followed, lies in the folder, or in the blobs of the hub cache the folder is part of."""
    try:
        home, end = folder.resolve(), file.resolve()
    except (OSError, RuntimeError):
        return False
    roots = [home]
    if home.parent.name == "snapshots":
        roots.append(home.parent.parent / "blobs")
    return any(end.is_relative_to(root) for root in roots)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} stands twice in one object")
        found[key] = value
    return found
