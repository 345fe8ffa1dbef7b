"""Which tensor is stored as what, and the conversion, piece by piece."""

from collections.abc import Iterator
from math import prod

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from gguf.quants import quantize
from numpy.typing import NDArray
from torch import Tensor

from dflash2_core.errors import CompatibilityError

OUTTYPES = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
    "q4_1": GGMLQuantizationType.Q4_1,
    "q5_0": GGMLQuantizationType.Q5_0,
    "q5_1": GGMLQuantizationType.Q5_1,
}
FILE_TYPES = {
    # what llama.cpp shows as the file's type
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "q4_1": LlamaFileType.MOSTLY_Q4_1,
    "q5_0": LlamaFileType.MOSTLY_Q5_0,
    "q5_1": LlamaFileType.MOSTLY_Q5_1,
}
PIECE = 2**22
"""Elements converted at once: what is needed beside the result does not grow with the tensor."""


def outtype_named(name: str) -> GGMLQuantizationType:
    """CompatibilityError for a name that is none of `OUTTYPES`."""
    if name not in OUTTYPES:
        raise CompatibilityError(f"outtype is {name!r}: expected one of {', '.join(OUTTYPES)}")
    return OUTTYPES[name]


def stored_type(gguf_name: str, shape: tuple[int, ...], outtype: GGMLQuantizationType) -> GGMLQuantizationType:
    """The type of one tensor: norms and base kernels are F32, which llama.cpp's kernels insist on; the rest is `outtype`.

    Rows that are no multiple of a block fall back to F16, as in llama.cpp's own tools.
    """
    if len(shape) < 2 or not gguf_name.endswith(".weight"):
        return GGMLQuantizationType.F32
    return outtype if shape[-1] % GGML_QUANT_SIZES[outtype][0] == 0 else GGMLQuantizationType.F16


def num_bytes(shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    """Of a tensor of `shape` stored as `kind`."""
    block, size = GGML_QUANT_SIZES[kind]
    return prod(shape) // block * size


def largest_finite(kind: GGMLQuantizationType) -> float:
    """Above this absolute value a weight becomes infinite in `kind`; blocks keep their scales and offsets in float16."""
    if kind == GGMLQuantizationType.F32:
        return float(torch.finfo(torch.float32).max)
    return float(torch.finfo(torch.bfloat16 if kind == GGMLQuantizationType.BF16 else torch.float16).max)


def converted(tensor: Tensor, kind: GGMLQuantizationType) -> NDArray[np.uint8]:
    """`tensor` (any float type, any shape) as the bytes of `kind`, flat; beside them about `PIECE` elements are in memory."""
    found = np.empty(num_bytes(tuple(tensor.shape), kind), dtype=np.uint8)
    filled = 0
    for piece in _pieces(tensor):
        raw = quantize(piece.to(torch.float32).numpy(), kind).view(np.uint8).reshape(-1)
        found[filled : filled + raw.size] = raw
        filled += raw.size
    return found


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Whole rows, some at a time: a block never spans two rows."""
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    yield from torch.split(rows, max(1, PIECE // rows.shape[-1]))
