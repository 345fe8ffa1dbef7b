"""The header of one safetensors file, checked against the file's size: untrusted input at the door.

The format: 8 bytes, little-endian, of header length; that many bytes of JSON, name -> dtype, shape, data_offsets;
then the data, without holes or overlaps.
"""

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from dflash2_core.config.documents import parse_object
from dflash2_core.config.reading import placed, shown
from dflash2_core.errors import CheckpointError

MAX_HEADER_BYTES = 32 * 2**20
MAX_DIMENSIONS = 8
ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}


@dataclass(frozen=True)
class Stored:
    """One tensor as a file's header states it; dtype in the format's own words."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of `path` and its metadata; CheckpointError when the file is not a sound safetensors file."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{placed(path)} is no sound safetensors file: it has {size} bytes and states a header of {length} "
                    f"(at most {MAX_HEADER_BYTES}); it may be cut off, download or copy it again"
                )
            raw = file.read(length)
    except OSError as problem:
        raise CheckpointError(f"{placed(path)} cannot be read: {problem.strerror or problem}") from None
    document = parse_object(raw, f"the header of {placed(path)}", CheckpointError)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"the header of {placed(path)} holds metadata that is not strings by name")
    tensors = {name: _stored(name, entry, path) for name, entry in document.items()}
    _check_layout(tensors, size - 8 - length, path)
    return tensors, metadata


def is_regular(path: Path) -> bool:
    """Whether `path` leads to an ordinary file: a pipe or device would block or never end."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _stored(name: str, entry: Any, path: Path) -> Stored:
    if not isinstance(entry, Mapping) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"the header of {placed(path)} describes {shown(name)} by {shown(entry)}: not a tensor")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise CheckpointError(f"the header of {placed(path)} gives {shown(name)} the dtype {shown(dtype)}")
    if not _naturals(shape) or len(shape) > MAX_DIMENSIONS or not _naturals(offsets) or len(offsets) != 2:
        raise CheckpointError(
            f"the header of {placed(path)} gives {shown(name)} the shape {shown(shape)} and the place {shown(offsets)}"
        )
    return Stored(dtype, tuple(shape), offsets[0], offsets[1])


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**63 for item in value
    )


def _check_layout(tensors: Mapping[str, Stored], data_bytes: int, path: Path) -> None:
    """Each tensor as long as its shape says; all of them side by side over the whole data."""
    reached = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        length = tensor.end - tensor.begin
        if tensor.dtype in ITEM_BYTES and length != prod(tensor.shape) * ITEM_BYTES[tensor.dtype]:
            raise CheckpointError(
                f"{placed(path)}: {shown(name)} has {length} bytes but {tensor.dtype} of shape {list(tensor.shape)} needs "
                f"{shown(prod(tensor.shape) * ITEM_BYTES[tensor.dtype])}"
            )
        if tensor.begin != reached or length < 0:
            raise CheckpointError(
                f"{placed(path)}: {shown(name)} starts at byte {tensor.begin} but the data before it ends at {reached}"
            )
        reached = tensor.end
    if reached != data_bytes:
        raise CheckpointError(
            f"{placed(path)} holds {data_bytes} bytes of data but its header describes {reached}: cut off or damaged"
        )
