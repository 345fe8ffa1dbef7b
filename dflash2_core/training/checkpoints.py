"""Everything a run needs to go on as if it had never stopped. Tensors in safetensors, the rest in JSON; nothing is pickled.

Files: run.json, weights.safetensors, optimizer.{i}.safetensors.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dflash2_core.errors import CheckpointError

LATEST, PREVIOUS = "latest", "previous"


def save_checkpoint(
    folder: Path, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], state: dict[str, Any]
) -> None:
    """Replaces the checkpoint in `folder` whole: a run that dies while saving leaves the one before, here or in `previous`."""
    new, current, previous = folder / "incoming", folder / LATEST, folder / PREVIOUS
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, new / "weights.safetensors")
    for number, optimizer in enumerate(optimizers):
        states = optimizer.state_dict()["state"]
        tensors = {f"{index}.{key}": value.contiguous() for index, kept in states.items() for key, value in kept.items()}
        save_file(tensors, new / f"optimizer.{number}.safetensors")
    (new / "run.json").write_text(json.dumps(state, indent=2) + "\n")
    if current.exists():
        shutil.rmtree(previous, ignore_errors=True)
        os.replace(current, previous)
    os.replace(new, current)
    shutil.rmtree(previous, ignore_errors=True)


def load_checkpoint(folder: Path, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """Restores weights and optimizers in place and returns the state; CheckpointError if there is none that fits."""
    current = next((kept for kept in (folder / LATEST, folder / PREVIOUS) if kept.exists()), folder / LATEST)
    try:
        state: dict[str, Any] = json.loads((current / "run.json").read_text())
        module.load_state_dict(load_file(current / "weights.safetensors"))
        for number, optimizer in enumerate(optimizers):
            restored = optimizer.state_dict()
            restored["state"] = _nested(load_file(current / f"optimizer.{number}.safetensors"))
            optimizer.load_state_dict(restored)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the run in {folder} cannot be resumed: {error}") from error
    return state


def _nested(tensors: dict[str, torch.Tensor]) -> dict[int, dict[str, torch.Tensor]]:
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        states.setdefault(int(index), {})[key] = tensor
    return states
