"""Checkpoints to drafters and back."""

from collections.abc import Mapping
from pathlib import Path

import torch

from dflash2_core.checkpoint import open_checkpoint, write_checkpoint
from dflash2_core.drafter.model import OWN_EMBEDDING, OWN_HEAD, OWN_MASK, Drafter
from dflash2_core.drafter.rotary import RotaryEmbedding


def load_drafter(path: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Drafter:
    """Load a drafter for inference.

    path    the folder of a checkpoint, z-lab or speculators layout
    dtype   of the weights in memory; None keeps the checkpoint's
    device  None is the CPU
    Raises ConfigError or CheckpointError: every tensor and every key of the checkpoint is used, or refused by name.
    """
    checkpoint = open_checkpoint(path)
    own = {OWN_EMBEDDING, OWN_HEAD, OWN_MASK} & set(checkpoint.tensor_names)
    with torch.device("meta"):
        drafter = Drafter(checkpoint.config, own)
    tensors = {name: tensor.to(device=device or "cpu", dtype=dtype) for name, tensor in checkpoint.tensors()}
    drafter.load_state_dict(tensors, assign=True, strict=True)
    drafter.rotary = RotaryEmbedding(checkpoint.config, device or "cpu")  # computed, never stored
    return drafter.requires_grad_(False).eval()


def save_drafter(
    drafter: Drafter, path: str | Path, *, layout: str = "zlab", metadata: Mapping[str, str] | None = None
) -> None:
    """Write config.json and model.safetensors into the folder `path`, byte for byte the same for the same drafter."""
    write_checkpoint(drafter.config, drafter.state_dict(), path, layout=layout, metadata=metadata)
