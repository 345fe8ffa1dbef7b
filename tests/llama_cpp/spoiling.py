"""GGUFs rebuilt with something wrong in them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

from gguf_export.header import Key, read_header

Tensor = tuple[NDArray[np.float32], GGMLQuantizationType]


def rebuilt(
    source: Path,
    path: Path,
    *,
    architecture: str | None = None,
    keys: Iterable[Key] = (),
    without: Iterable[str] = (),
    tensors: Mapping[str, Tensor] | None = None,
) -> Path:
    """The GGUF `source` with keys and tensors replaced, added or left out; with another architecture, its keys renamed."""
    header, data = read_header(source), source.read_bytes()
    before = f"{header.architecture}."
    name_of = {name: name for name in header.keys}
    if architecture is not None:
        name_of = {name: f"{architecture}.{name.removeprefix(before)}" if name.startswith(before) else name for name in name_of}
    writer = GGUFWriter(path, architecture or header.architecture or "")
    for name, key in (header.keys | {key.name: key for key in keys}).items():
        if name not in (*without, "general.architecture"):
            writer.add_key_value(name_of.get(name, name), key.value, key.kind, key.item)
    stored = {
        name: (np.frombuffer(data, np.uint8, place.num_bytes, place.begin), place.shape, place.kind)
        for name, place in header.tensors.items()
        if name not in set(without)
    }
    for name, (values, kind) in (tensors or {}).items():
        raw = values if kind == GGMLQuantizationType.F32 else quantize(values, kind)
        stored[name] = (raw.reshape(-1).view(np.uint8), values.shape, kind)
    for name, (raw, shape, kind) in stored.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float32), raw.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for raw, _, _ in stored.values():
        writer.write_tensor_data(raw)
    writer.close()
    return path


def values_of(path: Path, name: str) -> NDArray[np.float32]:
    """A tensor that is stored as F32."""
    place = read_header(path).tensors[name]
    assert place.kind == GGMLQuantizationType.F32
    return np.fromfile(path, np.float32, place.num_bytes // 4, offset=place.begin).reshape(place.shape)
