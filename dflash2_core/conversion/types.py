"""In which types weights are written, and whether that changes a value."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dflash2_core.checkpoint.reading import DTYPES
from dflash2_core.config.reading import placed, shown
from dflash2_core.conversion.sources import Source, Weights
from dflash2_core.errors import CheckpointError, CompatibilityError

KEEP = "keep"
NAMED = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
OUTTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
"""What `gguf_export` calls the types that hold a weight as it is."""


def dtype_named(name: str) -> torch.dtype | None:
    """None for `KEEP`: every tensor as it is stored; CompatibilityError for what is neither that nor a float type."""
    if name != KEEP and name not in NAMED:
        raise CompatibilityError(f"dtype is {shown(name)}: expected {KEEP}, {', '.join(NAMED)}")
    return NAMED.get(name)


def written_as(source: Source, dtype: torch.dtype | None) -> Mapping[str, Tensor]:
    """The tensors as they are written; on the way CheckpointError for one that `dtype` is too narrow for."""
    if dtype is None:
        return source.tensors
    return Weights(tuple(source.tensors), lambda name: _cast(source, name, dtype))


def rounded(source: Source, written: Mapping[str, Tensor]) -> list[str]:
    """The tensors of which a value changes when they are written so."""
    return [name for name, tensor in written.items() if not _same_values(source.tensors[name], tensor)]


def exact_outtype(source: Source) -> str:
    """The GGUF type that holds every matrix as it is: the one they have, or f32 where they have several."""
    found = {tensor.dtype for name, tensor in source.tensors.items() if tensor.ndim > 1 and not name.endswith("base_kernel")}
    if torch.float64 in found:
        raise CompatibilityError(f"{placed(source.path)} holds float64 weights, which a GGUF rounds: say so with --dtype f32")
    return OUTTYPES[found.pop()] if len(found) == 1 else "f32"


def _cast(source: Source, name: str, dtype: torch.dtype) -> Tensor:
    stored = source.tensors[name]
    cast = stored.to(dtype)
    if bool(cast.isinf().any()) and not bool(stored.isinf().any()):
        raise CheckpointError(
            f"{placed(source.path)}: {name} holds {float(stored.abs().max()):.3g}, which is too large for "
            f"{str(dtype).removeprefix('torch.')}: choose a wider dtype"
        )
    return cast


def _same_values(stored: Tensor, written: Tensor) -> bool:
    wide = torch.promote_types(stored.dtype, written.dtype)
    return torch.equal(stored.to(wide), written.to(wide))
