"""From a GGUF to a drafter's description and its weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from dflash2_core.checkpoint import InvalidCheckpointError
from dflash2_core.checkpoint.reading import listed
from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import named, placed, shown
from dflash2_core.config.shapes import optional_tensor_shapes, tensor_shapes
from dflash2_core.errors import CheckpointError
from gguf_export.header import Header, Placed, read_header
from gguf_export.keys import read_config
from gguf_export.names import ARCHITECTURE, gguf_names

FLOATS: dict[GGMLQuantizationType, tuple[Any, torch.dtype]] = {
    # kept as they are; bfloat16 has no NumPy type and travels as its bits
    GGMLQuantizationType.F64: (np.float64, torch.float64),
    GGMLQuantizationType.F32: (np.float32, torch.float32),
    GGMLQuantizationType.F16: (np.float16, torch.float16),
    GGMLQuantizationType.BF16: (np.int16, torch.bfloat16),
}


class Tensors(Mapping[str, Tensor]):
    """The weights under their canonical names, each read when it is asked for: memory holds what the caller keeps.

    Floats come in their stored type, anything quantised as float32.
    """

    def __init__(self, path: Path, places: Mapping[str, Placed]) -> None:
        self.path, self.places = path, places

    def __getitem__(self, name: str) -> Tensor:
        return read_tensor(self.path, name, self.places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def read(path: str | Path) -> tuple[DrafterConfig, Tensors]:
    """The drafter in the GGUF `path`: its config, and its tensors by canonical name.

    Any type that the package `gguf` can dequantise. Special tokens are those of the tokenizer that came with it.
    Raises CheckpointError or ConfigError, naming every key and tensor that is missing, unknown or of another shape.
    """
    header = drafter_header(path)
    config = read_config(header)
    if problems := tensor_problems(header, config):
        raise InvalidCheckpointError(header.path, problems)
    return config, Tensors(header.path, places_of(header, config))


def drafter_header(path: str | Path) -> Header:
    """The head of a drafter's GGUF; CheckpointError for one of another model, and for a part of a split file."""
    header = read_header(path)
    if header.architecture != ARCHITECTURE:
        raise CheckpointError(
            f"{placed(header.path)} is the GGUF of a model of architecture {shown(header.architecture)}: expected a drafter's, "
            f"whose architecture is {ARCHITECTURE}"
        )
    if (header.value("split.count") or 1) != 1:
        raise CheckpointError(f"{placed(header.path)} is one part of a split GGUF: merge the parts with llama-gguf-split first")
    return header


def places_of(header: Header, config: DrafterConfig) -> dict[str, Placed]:
    """Canonical name -> place, in order of use, of the tensors that the file holds."""
    names = gguf_names(config)
    return {canonical: header.tensors[name] for canonical, name in names.items() if name in header.tensors}


def tensor_problems(header: Header, config: DrafterConfig) -> list[str]:
    """Every tensor that is missing, unknown, of another shape than the config's or of a type that cannot be read."""
    names = gguf_names(config)
    known = {name: canonical for canonical, name in names.items()}
    needed, shapes = tensor_shapes(config), tensor_shapes(config) | optional_tensor_shapes(config)
    problems = []
    if missing := [names[canonical] for canonical in needed if names[canonical] not in header.tensors]:
        problems.append(f"{len(missing)} of {len(needed)} tensors missing: {listed(missing)}")
    if unknown := [name for name in header.tensors if name not in known]:
        problems.append(f"tensors refused, a DFlash {config.version} drafter has no place for them: {listed(unknown)}")
    for name, place in header.tensors.items():
        if name in known and place.shape != shapes[known[name]]:
            problems.append(
                f"{named(name)} has shape {list(place.shape)} but the keys ask for {list(shapes[known[name]])} "
                "(slowest dimension first)"
            )
        if name in known and place.kind not in FLOATS and not _can_dequantise(place.kind):
            problems.append(f"{named(name)} is stored as {place.kind.name}, which the package gguf cannot dequantise")
    return problems


def read_tensor(path: Path, name: str, place: Placed) -> Tensor:
    """One tensor, dequantised; CheckpointError when the file is gone or shorter by now."""
    try:
        raw = np.fromfile(path, dtype=np.uint8, count=place.num_bytes, offset=place.begin)
    except OSError as problem:
        raise CheckpointError(f"{placed(path)} cannot be read: {problem.strerror or problem}") from None
    if raw.size != place.num_bytes:
        raise CheckpointError(f"{placed(path)} changed while it was open: it ends inside {named(name)}")
    if place.kind in FLOATS:
        stored, dtype = FLOATS[place.kind]
        return torch.from_numpy(raw.view(stored).reshape(place.shape)).view(dtype)
    return torch.from_numpy(dequantize(raw, place.kind).reshape(place.shape))


def _can_dequantise(kind: GGMLQuantizationType) -> bool:
    try:
        dequantize(np.zeros(0, dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    except (ValueError, ZeroDivisionError):  # a kind it knows, of which nothing makes no sense
        return True
    return True
