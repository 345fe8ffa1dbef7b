"""A run's folder: everything needed to go on as if it had never stopped, and its log.

    log.jsonl                      a record a step
    latest/run.json                what run it is, and how far it is
    latest/weights.safetensors, latest/optimizer.{i}.safetensors

Tensors in safetensors, the rest in JSON; nothing is pickled.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from dflash2_core.errors import CheckpointError, Dflash2Error

LOG, LATEST, PREVIOUS = "log.jsonl", "latest", "previous"
Optimizers = Sequence[torch.optim.Optimizer]


class Run:
    """folder: None keeps nothing. identity: what makes it this run and no other; a resumed one must have the same."""

    def __init__(self, folder: Path | None, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))

    def begin(self) -> tuple[int, float]:
        """A new run: step 0, second 0. Raises Dflash2Error if the folder holds a run already."""
        if self.folder is not None:
            if self._current(self.folder) is not None:
                raise Dflash2Error(f"{self.folder} holds a run already: resume it, or name another folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / LOG).unlink(missing_ok=True)
        return 0, 0.0

    def resume(self, module: nn.Module, optimizers: Optimizers) -> tuple[int, float]:
        """Restores weights and optimizers in place; returns step and seconds. The log goes back to that step.

        Raises CheckpointError if there is no checkpoint, or if it is damaged or of another run.
        """
        if self.folder is None:
            raise Dflash2Error("resuming needs the folder of the run to resume")
        try:
            current = self._current(self.folder) or self.folder / LATEST
            state: dict[str, Any] = json.loads((current / "run.json").read_text())
            step, seconds, identity = int(state["step"]), float(state["seconds"]), dict(state["identity"])
            self._require(identity)
            module.load_state_dict(load_file(current / "weights.safetensors"))
            for number, optimizer in enumerate(optimizers):
                restored = optimizer.state_dict()
                restored["state"] = _nested(load_file(current / f"optimizer.{number}.safetensors"))
                optimizer.load_state_dict(restored)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"the run in {self.folder} cannot be resumed: {error}") from error
        self._cut_log(step)
        return step, seconds

    def save(self, module: nn.Module, optimizers: Optimizers, step: int, seconds: float) -> None:
        """Replaces the checkpoint whole: a run that dies while saving leaves the one before, here or in `previous`."""
        if self.folder is None:
            return
        new, current, previous = (self.folder / name for name in ("incoming", LATEST, PREVIOUS))
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, new / "weights.safetensors")
        for number, optimizer in enumerate(optimizers):
            states = optimizer.state_dict()["state"]
            tensors = {f"{index}.{key}": value.contiguous() for index, kept in states.items() for key, value in kept.items()}
            save_file(tensors, new / f"optimizer.{number}.safetensors")
        state = {"step": step, "seconds": seconds, "identity": self.identity}
        (new / "run.json").write_text(json.dumps(state, indent=2) + "\n")
        if current.exists():
            shutil.rmtree(previous, ignore_errors=True)
            os.replace(current, previous)
        os.replace(new, current)
        shutil.rmtree(previous, ignore_errors=True)

    def log(self, record: Mapping[str, Any]) -> None:
        if self.folder is not None:
            with (self.folder / LOG).open("a") as log:
                log.write(json.dumps(record) + "\n")

    def _current(self, folder: Path) -> Path | None:
        return next((folder / name for name in (LATEST, PREVIOUS) if (folder / name).exists()), None)

    def _require(self, theirs: Mapping[str, Any]) -> None:
        names = [name for name in self.identity | dict(theirs) if self.identity.get(name) != theirs.get(name)]
        if names:
            name = names[0]
            raise ValueError(f"{name} is {self.identity.get(name)!r:.300} now and was {theirs.get(name)!r:.300}")

    def _cut_log(self, step: int) -> None:
        assert self.folder is not None
        path = self.folder / LOG
        if path.is_file():
            lines = [line for line in path.read_text().splitlines() if json.loads(line)["step"] <= step]
            path.write_text("".join(line + "\n" for line in lines))


def _nested(tensors: dict[str, torch.Tensor]) -> dict[int, dict[str, torch.Tensor]]:
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        states.setdefault(int(index), {})[key] = tensor
    return states
