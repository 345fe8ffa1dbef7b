"""Is the drafter in a folder still the one its manifest was made of?"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash2_core.checkpoint.files import CONFIG
from dflash2_core.checkpoint.header import is_regular
from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import named, placed, shown
from dflash2_core.errors import CheckpointError, ConfigError
from dflash2_core.manifest.document import NAME, Manifest, described
from dflash2_core.manifest.files import Fingerprint, files_of, fingerprint, holds_weights


class ManifestError(CheckpointError):
    """A CheckpointError that carries each difference as a sentence of its own."""

    def __init__(self, folder: Path, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        mend = (
            f"get the drafter again, or, where the change is meant, write the manifest again: dflash2 manifest {placed(folder)}"
        )
        listed = problems[0] if len(problems) == 1 else "".join(f"\n- {problem}" for problem in problems) + "\n"
        super().__init__(f"{placed(folder)} is not what its {NAME} says: {listed}; {mend}")


def has_manifest(path: Path) -> bool:
    """Whether `path` is a folder with a manifest in it."""
    return os.path.exists(path / NAME)  # which raises for no path, whatever stands in it


def require_as_manifested(path: Path) -> None:
    """Nothing where `path` is no folder with a manifest; else raises ManifestError with every difference.

    Reads every byte that the manifest speaks of: see `files.py` for what that costs.
    """
    if has_manifest(path) and (found := list(differences(path))):
        raise ManifestError(path, found)


def differences(folder: Path) -> Iterator[str]:
    """Every way in which `folder` is not what its manifest says, as sentences; CheckpointError for a manifest unread."""
    manifest = Manifest.read(folder)
    changed = {name: _difference(folder, name, expected) for name, expected in manifest.files.items()}
    yield from (problem for problem in changed.values() if problem is not None)
    for name in files_of(folder):
        if name not in manifest.files and holds_weights(name):
            yield f"{named(name)} is no file of the manifest, and could be taken for weights"
    if CONFIG not in manifest.files:
        yield f"it says nothing of {CONFIG}"
    elif changed[CONFIG] is None:
        yield from _other_drafter(folder, manifest)


def _difference(folder: Path, name: str, expected: Fingerprint) -> str | None:
    path = folder / name
    if not is_regular(path):
        return f"{named(name)} is missing"
    if path.stat().st_size != expected.size:  # tells without reading it
        return f"{named(name)} has {path.stat().st_size:,} bytes, expected {expected.size:,}"
    found = fingerprint(path).sha256
    return None if found == expected.sha256 else f"{named(name)} has the sha256 {found}, expected {expected.sha256}"


def _other_drafter(folder: Path, manifest: Manifest) -> Iterator[str]:
    try:
        found = described(DrafterConfig.from_pretrained(folder))
    except ConfigError as problem:
        yield str(problem)
        return
    for name, value in found.items():
        if manifest.drafter.get(name) != value:
            yield f"it says {name} {shown(manifest.drafter.get(name))}, {CONFIG} says {shown(value)}"
