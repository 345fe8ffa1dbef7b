"""The head of a GGUF file, checked against the file's size: untrusted input at the door.

The format, little-endian: magic, version, number of tensors, number of keys; the keys with typed values; for each tensor its
name, dimensions (fastest first), type and place; then, from the next multiple of the alignment, the data.

`gguf.GGUFReader` makes an object of every token of a vocabulary and believes the counts in the file; this reader does neither.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from dflash2_core.checkpoint.files import GGUF, is_gguf
from dflash2_core.checkpoint.header import is_regular
from dflash2_core.config.reading import placed, shown
from dflash2_core.errors import CheckpointError
from gguf_export.outtypes import num_bytes

VERSIONS = (2, 3)
MAX_KEYS, MAX_TENSORS, MAX_DIMENSIONS, MAX_NAME = 2**16, 2**18, 4, 2**16
SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class Key:
    """One key with its value: a str, a number or a bool; a list of them for an array, of bytes where they are strings.

    item  the type of an array's items, None for what is no array
    """

    name: str
    kind: GGUFValueType
    value: Any
    item: GGUFValueType | None = None


@dataclass(frozen=True)
class Placed:
    """A tensor as the file states it; shape slowest dimension first, as torch has it; begin counted from the file's start."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    begin: int
    num_bytes: int


@dataclass(frozen=True)
class Header:
    path: Path
    keys: Mapping[str, Key]
    tensors: Mapping[str, Placed]

    def value(self, name: str) -> Any:
        """The value of the key `name`, None when absent."""
        return self.keys[name].value if name in self.keys else None

    @property
    def architecture(self) -> str | None:
        found = self.value("general.architecture")
        return found if isinstance(found, str) else None


def read_header(path: str | Path) -> Header:
    """Keys and tensor places of the GGUF `path`; CheckpointError with a sentence for what is no sound GGUF."""
    path = Path(path)
    if not is_regular(path):
        raise CheckpointError(f"{placed(path)} is no file: expected a GGUF")
    if not is_gguf(path):
        raise CheckpointError(f"{placed(path)} does not begin with {GGUF.decode()}: expected a GGUF file")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(path, _Cursor(data))
    except (ValueError, IndexError, struct.error) as problem:
        raise CheckpointError(f"{placed(path)} is no sound GGUF: {problem}; it may be cut off, copy it again") from None
    except OSError as problem:
        raise CheckpointError(f"{placed(path)} cannot be read: {problem.strerror or problem}") from None


class _Cursor:
    """Reads forward through the file; a ValueError where the file ends before what it promises."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.size = data, len(GGUF), len(data)

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        begin = self._pass(count * struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{count}{code}", self.data, begin)

    def text(self) -> bytes:
        length = self.number("Q")
        begin = self._pass(length)
        return self.data[begin : begin + length]

    def _pass(self, length: int) -> int:
        if length > self.size - self.at:
            raise ValueError(f"it has {self.size} bytes, and at byte {self.at} promises {shown(length)} more")
        begin, self.at = self.at, self.at + length
        return begin


def _read(path: Path, cursor: _Cursor) -> Header:
    version = cursor.number("I")
    if version not in VERSIONS:
        raise ValueError(f"its version is {version}, expected {' or '.join(map(str, VERSIONS))}, little-endian")
    num_tensors, num_keys = cursor.numbers("Q", 2)
    if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
        raise ValueError(f"it states {shown(num_tensors)} tensors and {shown(num_keys)} keys")
    keys: dict[str, Key] = {}
    for _ in range(num_keys):
        key = _read_key(cursor)
        if key.name in keys:
            raise ValueError(f"the key {shown(key.name)} stands twice")
        keys[key.name] = key
    stated = [_read_place(cursor) for _ in range(num_tensors)]
    alignment = keys["general.alignment"].value if "general.alignment" in keys else GGUF_DEFAULT_ALIGNMENT
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 2**20:
        raise ValueError(f"general.alignment is {shown(alignment)}: expected a power of two")
    data = cursor.at + -cursor.at % alignment
    tensors: dict[str, Placed] = {}
    for name, shape, kind, offset in stated:
        if name in tensors:
            raise ValueError(f"the tensor {shown(name)} stands twice")
        tensors[name] = Placed(shape, kind, data + offset, _num_bytes(name, shape, kind))
        if tensors[name].begin + tensors[name].num_bytes > cursor.size or offset % alignment:
            raise ValueError(f"the tensor {shown(name)} does not lie in it: {cursor.size} bytes, offset {shown(offset)}")
    return Header(path, keys, tensors)


def _read_key(cursor: _Cursor) -> Key:
    name, kind = _name(cursor), GGUFValueType(cursor.number("I"))
    if kind != GGUFValueType.ARRAY:
        return Key(name, kind, cursor.text().decode() if kind == GGUFValueType.STRING else cursor.number(SCALARS[kind]))
    item, count = GGUFValueType(cursor.number("I")), cursor.number("Q")
    if item == GGUFValueType.STRING:
        if count > cursor.size // 8:  # each has a length of 8 bytes
            raise ValueError(f"the key {shown(name)} promises {shown(count)} strings")
        return Key(name, kind, [cursor.text() for _ in range(count)], item)
    if item not in SCALARS:
        raise ValueError(f"the key {shown(name)} holds an array of arrays")
    return Key(name, kind, list(cursor.numbers(SCALARS[item], count)), item)


def _read_place(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    name, dimensions = _name(cursor), cursor.number("I")
    if dimensions > MAX_DIMENSIONS:
        raise ValueError(f"the tensor {shown(name)} has {dimensions} dimensions")
    shape = cursor.numbers("Q", dimensions)[::-1]
    return name, shape, GGMLQuantizationType(cursor.number("I")), cursor.number("Q")


def _name(cursor: _Cursor) -> str:
    text = cursor.text()
    if len(text) > MAX_NAME:
        raise ValueError(f"a name has {len(text)} bytes")
    return text.decode()


def _num_bytes(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    block, _ = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block:
        raise ValueError(f"the tensor {shown(name)} has rows of {shape[-1:]} values, no multiple of {kind.name}'s {block}")
    return num_bytes(shape, kind)
