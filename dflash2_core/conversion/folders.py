"""A drafter as a folder in the z-lab or speculators layout."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash2_core.checkpoint import open_checkpoint, write_checkpoint
from dflash2_core.checkpoint.files import CONFIG
from dflash2_core.config.documents import read_object
from dflash2_core.config.reading import placed
from dflash2_core.conversion.cards import carry_cards, carry_manifest
from dflash2_core.conversion.refusals import refuse_for_speculators
from dflash2_core.conversion.sources import Source
from dflash2_core.conversion.types import rounded, written_as
from dflash2_core.errors import CheckpointError

ALGORITHM = "speculators_config"


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What was written.

    parameters_by_type  type -> weights stored so
    notes               what is not as it was in the source, as sentences; empty: nothing was lost
    """

    path: Path
    layout: str
    num_tensors: int
    num_bytes: int
    parameters_by_type: Mapping[str, int]
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return {
            "path": str(self.path),
            "layout": self.layout,
            "num_tensors": self.num_tensors,
            "num_bytes": self.num_bytes,
            "parameters_by_type": dict(self.parameters_by_type),
            "notes": self.notes,
        }


def convert(
    source: Source,
    out: str | Path,
    *,
    layout: str,
    dtype: torch.dtype | None = None,
    verifier: Mapping[str, Any] | None = None,
) -> Converted:
    """Write `source` into the folder `out`, which is there only when whole; what was written is read back and compared.

    out       must not exist yet, or be an empty folder
    layout    "zlab" or "speculators"
    dtype     of all weights; None: of each tensor its own, whose bits stay as they are
    verifier  speculators only: the target's `name_or_path` and `architectures`; None: what the source says of it
    Raises ConfigError, CheckpointError or CompatibilityError for all that the layout cannot hold, by name.
    Memory: one tensor at a time.
    """
    out = Path(out)
    if layout == "speculators":
        refuse_for_speculators(source)
    tensors = written_as(source, dtype)
    unfinished = _room_beside(out)
    try:
        write_checkpoint(source.config, tensors, unfinished, layout=layout, metadata=_metadata(source))
        if layout == "speculators":
            _name_verifier(unfinished, verifier or source.verifier)
        carry_cards(source, unfinished)
        done = _read_back(source, tensors, unfinished)
        carry_manifest(source, unfinished)
        unfinished.replace(out)
    except OSError as problem:
        raise CheckpointError(f"{placed(out)} cannot be written: {problem.strerror or problem}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    notes = [*_quantised(source), *_rounded(source, tensors, dtype), *_unsaid(source, layout)]
    return Converted(path=out, layout=layout, notes=notes, **done)


def _room_beside(out: Path) -> Path:
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise CheckpointError(f"{placed(out)} is there already and not an empty folder: choose another name")
    if not out.absolute().parent.is_dir():
        raise CheckpointError(f"{placed(out.absolute().parent)} is no folder: make it first, or choose another place")
    unfinished = out.absolute().with_name(f".{out.name}.writing")
    shutil.rmtree(unfinished, ignore_errors=True)  # what a conversion that was killed has left
    return unfinished


def _metadata(source: Source) -> dict[str, str]:
    return {name: value for name, value in source.metadata.items() if name != "format"}


def _name_verifier(folder: Path, verifier: Mapping[str, Any] | None) -> None:
    if verifier is None:
        return
    document = read_object(folder / CONFIG, CheckpointError)
    document[ALGORITHM]["verifier"] = dict(verifier)
    (folder / CONFIG).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def _read_back(source: Source, tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Any]:
    """Counts for `Converted`; CheckpointError where the folder is not what was to be written."""
    written = open_checkpoint(folder)
    if written.config != source.config:
        raise CheckpointError(f"the config of {placed(source.path)} did not survive being written as {written.layout}")
    counted: Counter[str] = Counter()
    for name, expected in tensors.items():
        found = written.tensor(name)
        if found.dtype != expected.dtype or not torch.equal(_bits(found), _bits(expected)):
            raise CheckpointError(f"{name} was not written as it is: the disk may be full or damaged")
        counted[str(found.dtype).removeprefix("torch.")] += found.numel()
    return {
        "num_tensors": len(written.tensor_names),
        "num_bytes": sum(file.stat().st_size for file in written.files),
        "parameters_by_type": dict(counted.most_common()),
    }


def _bits(tensor: Tensor) -> Tensor:
    """So that a NaN equals itself and -0 is not 0."""
    return tensor.contiguous().view(torch.uint8)


def _quantised(source: Source) -> list[str]:
    if not source.quantised:
        return []
    kinds = ", ".join(f"{name} {count:,}" for name, count in source.quantised.items())
    return [f"quantised weights ({kinds}) were dequantised: what quantising rounded away stays lost"]


def _rounded(source: Source, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> list[str]:
    changed = [] if dtype is None else rounded(source, tensors)
    return [f"{str(dtype).removeprefix('torch.')} rounds values of {len(changed)} tensors"] if changed else []


def _unsaid(source: Source, layout: str) -> list[str]:
    if source.verifier is None or layout == "speculators":
        return []
    return [f"the target's name ({source.verifier['name_or_path']}) is not kept: the layout {layout} has no place for it"]
