"""The manifest as a document.

    {"manifest_version": 1,
     "files": {"config.json": {"sha256": "...", "size": 1028}, "model.safetensors": {...}},
     "base_model": "org/target", "base_model_revision": "a commit or a tag", "licence": "apache-2.0",
     "drafter": {"version": 2, "block_size": 8, "num_drafts": 7, "target_layer_ids": [5, 19, 33]}}

What is not known is null.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dflash2_core.config import DrafterConfig
from dflash2_core.config.documents import read_object
from dflash2_core.config.reading import Reader, integer, mapping, placed, shown, string
from dflash2_core.errors import CheckpointError
from dflash2_core.manifest.files import Fingerprint, files_of, fingerprint

NAME = "dflash2_manifest.json"
VERSION = 1
SHA256 = frozenset("0123456789abcdef")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """files: of the folder by name, `/` between folders; drafter: what `described` says of the config."""

    files: Mapping[str, Fingerprint]
    drafter: Mapping[str, Any]
    base_model: str | None = None
    base_model_revision: str | None = None
    licence: str | None = None

    @classmethod
    def of(
        cls,
        folder: Path,
        config: DrafterConfig,
        *,
        base_model: str | None = None,
        base_model_revision: str | None = None,
        licence: str | None = None,
    ) -> "Manifest":
        """Of the drafter in `folder` as it is now; reads every byte of it."""
        return cls(
            files={name: fingerprint(folder / name) for name in files_of(folder) if name != NAME},
            drafter=described(config),
            base_model=base_model,
            base_model_revision=base_model_revision,
            licence=licence,
        )

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest in `folder`; CheckpointError for one that this version does not read, naming what is wrong."""
        document = read_object(folder / NAME, CheckpointError)
        if document.get("manifest_version") != VERSION:
            version = shown(document.get("manifest_version"))
            raise CheckpointError(f"{placed(folder / NAME)}: manifest_version is {version}, this dflash2 reads {VERSION}")
        reader = Reader(document)
        reader.raw("manifest_version")
        files = reader.need(_files, "files")
        drafter = reader.need(mapping, "drafter")
        stated = {name: reader.value(string, name) for name in ("base_model", "base_model_revision", "licence")}
        problems = [*reader.problems, *(f"{name} is a key this dflash2 does not know" for name in reader.unread())]
        if problems or files is None or drafter is None:
            raise CheckpointError(f"{placed(folder / NAME)}: {'; '.join(problems)}")
        return cls(files=files, drafter=drafter, **stated)

    def write(self, folder: Path) -> Path:
        """Into `folder`, there only when whole; the same bytes for the same manifest."""
        path, unfinished = folder / NAME, folder / f".{NAME}.writing"
        try:
            unfinished.write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            unfinished.replace(path)
        except OSError as problem:
            raise CheckpointError(f"{placed(path)} cannot be written: {problem.strerror or problem}") from None
        finally:
            unfinished.unlink(missing_ok=True)
        return path

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return {
            "manifest_version": VERSION,
            "base_model": self.base_model,
            "base_model_revision": self.base_model_revision,
            "licence": self.licence,
            "drafter": dict(self.drafter),
            "files": {name: {"sha256": found.sha256, "size": found.size} for name, found in self.files.items()},
        }


def described(config: DrafterConfig) -> dict[str, Any]:
    """What a manifest says of a drafter."""
    return {
        "version": config.version,
        "block_size": config.block_size,
        "num_drafts": config.num_drafts,
        "target_layer_ids": list(config.target_layer_ids),
    }


def _files(value: object) -> dict[str, Fingerprint]:
    found = {}
    for name, entry in mapping(value).items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or path.as_posix() != name:
            raise ValueError(f"it names {shown(name)}: expected the name of a file in the folder")
        if set(mapping(entry)) != {"sha256", "size"}:
            raise ValueError(f"{shown(name)} is described by {shown(entry)}: expected sha256 and size")
        digest = string(mapping(entry)["sha256"])
        if len(digest) != 64 or not SHA256.issuperset(digest):
            raise ValueError(f"{shown(name)} has the sha256 {shown(digest)}: expected 64 hexadecimal digits")
        found[name] = Fingerprint(digest, integer(mapping(entry)["size"]))
    return found
