"""From a GGUF back to what a checkpoint holds, for `dflash2 convert`.

A GGUF holds norms and base kernels as F32 always. Where the type of the matrices can say the same values, they come in that
type again: a drafter that went to a GGUF of its own type and back is the same bytes.
"""

from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from dflash2_core.conversion.sources import Source, Weights
from gguf_export.header import Header
from gguf_export.reading import FLOATS, Tensors, drafter_header, read


def restored(path: str | Path) -> Source:
    """The drafter in the GGUF `path`, quantised weights as float32; raises what `read` raises."""
    header = drafter_header(path)
    config, tensors = read(path)
    matrices = _type_of_matrices(tensors)
    return Source(
        path=header.path,
        layout="gguf",
        config=config,
        tensors=Weights(tuple(tensors), lambda name: _narrowed(tensors[name], matrices)),
        licence=_text(header, "general.license"),
        base_model=_text(header, "general.base_model.0.name"),
        quantised=_quantised(tensors),
    )


def _type_of_matrices(tensors: Tensors) -> torch.dtype | None:
    """The one float type they are stored in; None where they are quantised or differ."""
    kinds = {place.kind for name, place in tensors.places.items() if len(place.shape) > 1 and not name.endswith("base_kernel")}
    kind = kinds.pop() if len(kinds) == 1 else None
    return FLOATS[kind][1] if kind in FLOATS else None


def _narrowed(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or dtype == tensor.dtype:
        return tensor
    narrow = tensor.to(dtype)
    return narrow if torch.equal(narrow.to(tensor.dtype), tensor) else tensor


def _quantised(tensors: Tensors) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for place in tensors.places.values():
        if place.kind not in FLOATS:
            found[place.kind.name] += prod(place.shape)
    return found


def _text(header: Header, name: str) -> str | None:
    found = header.value(name)
    return found if isinstance(found, str) else None
