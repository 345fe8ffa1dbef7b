"""A drafter that a command is about to use: the one place where its manifest, if it has one, is held against its files."""

from pathlib import Path

from rich.console import Console

from dflash2_core.manifest import has_manifest, require_as_manifested


def as_manifested(drafter: Path) -> Path:
    """`drafter` again; ManifestError where it is a folder whose manifest says something else. Asked before it is opened."""
    if has_manifest(drafter):
        with Console(stderr=True).status("checking the drafter's manifest"):
            require_as_manifested(drafter)
    return drafter
