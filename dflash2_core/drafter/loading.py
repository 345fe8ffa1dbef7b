"""Checkpoints to drafters and back."""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from dflash2_core.checkpoint import Checkpoint, open_checkpoint, write_checkpoint
from dflash2_core.checkpoint.reading import DTYPES, NOT_FINITE, is_finite
from dflash2_core.config.reading import placed, shown
from dflash2_core.drafter.model import OWN_EMBEDDING, OWN_HEAD, OWN_MASK, Drafter
from dflash2_core.drafter.rotary import RotaryEmbedding
from dflash2_core.errors import CheckpointError, CompatibilityError

LOADED_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


def load_drafter(
    path: str | Path, *, dtype: torch.dtype | str | None = None, device: torch.device | str | None = None
) -> Drafter:
    """Load a drafter for inference.

    path    the folder of a checkpoint, z-lab or speculators layout
    dtype   of the weights in memory, a torch dtype or its name; None keeps the checkpoint's, the widest where it holds several
    device  None is the CPU
    Raises ConfigError or CheckpointError: every tensor and every key of the checkpoint is used, or refused by name; so is a
    tensor with values that are no finite numbers, as they are stored or in `dtype`, since it would draft nothing.
    CompatibilityError for a dtype that is no float's, and a device that is not there.
    """
    place, wanted = _device(device or "cpu"), None if dtype is None else _dtype(dtype)
    checkpoint = open_checkpoint(path)
    own = {OWN_EMBEDDING, OWN_HEAD, OWN_MASK} & set(checkpoint.tensor_names)
    with torch.device("meta"):
        drafter = Drafter(checkpoint.config, own)
    kept = wanted or _widest(checkpoint)
    tensors = {name: _finite(checkpoint, name, stored, stored.to(place, kept)) for name, stored in checkpoint.tensors()}
    drafter.load_state_dict(tensors, assign=True, strict=True)
    drafter.rotary = RotaryEmbedding(checkpoint.config, place)  # computed, never stored
    return drafter.requires_grad_(False).eval()


def _finite(checkpoint: Checkpoint, name: str, stored: Tensor, loaded: Tensor) -> Tensor:
    if loaded.is_meta or is_finite(loaded):
        return loaded
    reason = NOT_FINITE
    if is_finite(stored):
        reason = f"too large for {str(loaded.dtype).removeprefix('torch.')}: load it in a wider dtype"
    raise CheckpointError(f"{placed(checkpoint.path)}: {name} holds values {reason}")


def _device(device: torch.device | str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as problem:
        reason = str(problem).splitlines()[0]
        raise CompatibilityError(f"device {shown(str(device))} cannot be used here: {reason}") from None


def _dtype(dtype: torch.dtype | str) -> torch.dtype:
    found = LOADED_DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise CompatibilityError(f"dtype is {shown(str(dtype))}: expected one of {', '.join(LOADED_DTYPES)}")
    return found


def _widest(checkpoint: Checkpoint) -> torch.dtype:
    """One type that holds every stored weight exactly: layers of several types cannot be run one after the other."""
    return reduce(torch.promote_types, checkpoint.dtypes.values())


def save_drafter(
    drafter: Drafter, path: str | Path, *, layout: str = "zlab", metadata: Mapping[str, str] | None = None
) -> None:
    """Write config.json and model.safetensors into the folder `path`, byte for byte the same for the same drafter."""
    write_checkpoint(drafter.config, drafter.state_dict(), path, layout=layout, metadata=metadata)
