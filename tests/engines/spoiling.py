"""Checkpoints with something changed in them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash2_core.assets import tiny_pair


def spoilt(
    folder: Path,
    *,
    source: Path | None = None,
    config: Callable[[dict[str, Any]], None] | None = None,
    tensors: Callable[[dict[str, Tensor]], None] | None = None,
) -> Path:
    """A copy of a checkpoint, its config.json and its tensors changed in place by these functions.

    source: None for the embedded drafter
    """
    shutil.copytree(source or tiny_pair().drafter, folder)
    if config is not None:
        document = json.loads((folder / "config.json").read_text())
        config(document)
        (folder / "config.json").write_text(json.dumps(document))
    if tensors is not None:
        loaded = load_file(folder / "model.safetensors")
        tensors(loaded)
        save_file(loaded, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def set_key(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    """For `spoilt`: the key at this place; to None takes it out."""

    def change(document: dict[str, Any]) -> None:
        for name in path[:-1]:
            document = document[name]
        if to is None:
            del document[path[-1]]
        else:
            document[path[-1]] = to

    return change


def remove(name: str) -> Callable[[dict[str, Tensor]], None]:
    """For `spoilt`: that tensor."""

    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return change
