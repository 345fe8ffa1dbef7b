"""The file itself: keys, places, then one tensor after the other; there under its name only when whole."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from dflash2_core.checkpoint.files import is_gguf
from dflash2_core.config.reading import placed
from dflash2_core.errors import CheckpointError
from gguf_export.header import Key, read_header
from gguf_export.names import ARCHITECTURE
from gguf_export.outtypes import num_bytes


@dataclass(frozen=True)
class Planned:
    """A tensor to be written: `load` makes its bytes, flat, when its turn comes."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    load: Callable[[], NDArray[np.uint8]]

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.shape, self.kind)


def refuse_foreign(path: Path) -> None:
    """CheckpointError for a place that holds something else than a drafter's GGUF: a target is not written over."""
    if not path.parent.is_dir():
        raise CheckpointError(f"{placed(path.parent)} is no folder: make it first, or choose another place for the GGUF")
    if path.is_symlink() or (path.exists() and not (is_gguf(path) and read_header(path).architecture == ARCHITECTURE)):
        raise CheckpointError(f"{placed(path)} is already there and is no drafter's GGUF: choose another name")


def write(path: Path, keys: Sequence[Key], tensors: Sequence[Planned], advance: Callable[[int], None]) -> None:
    """Write the GGUF `path`, byte for byte the same for the same keys and tensors. `advance` hears of the bytes done.

    Memory: one tensor's bytes at a time. Raises CheckpointError where the file cannot be written; nothing is left of it then.
    """
    with _whole_or_not_at_all(path) as unfinished:
        writer = GGUFWriter(unfinished, ARCHITECTURE)
        for key in keys:
            writer.add_key_value(key.name, key.value, key.kind, key.item)
        for tensor in tensors:
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.num_bytes, raw_dtype=tensor.kind)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            done = 0
            for tensor in tensors:
                writer.write_tensor_data(tensor.load())
                done += tensor.num_bytes
                advance(done)
        finally:
            writer.close()


@contextmanager
def _whole_or_not_at_all(path: Path) -> Iterator[Path]:
    unfinished = path.with_name(f".{path.name}.writing")
    try:
        yield unfinished
        unfinished.replace(path)
    except OSError as problem:
        raise CheckpointError(f"{placed(path)} cannot be written: {problem.strerror or problem}") from None
    finally:
        unfinished.unlink(missing_ok=True)
