"""Checkpoints with something wrong in them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor


def spoilt(source: Path, folder: Path, *, tensors: Callable[[dict[str, Tensor]], None] | None = None, **keys: Any) -> Path:
    """The checkpoint `source` in `folder`. keys: of config.json; `dflash_config` is merged; None takes a key out."""
    shutil.copytree(source, folder)
    path = folder / "config.json"
    document = json.loads(path.read_text())
    for name, value in (keys.pop("dflash_config", None) or {}).items():
        _put(document["dflash_config"], name, value)
    for name, value in keys.items():
        _put(document, name, value)
    path.write_text(json.dumps(document))
    if tensors is not None:
        held = load_file(folder / "model.safetensors")
        tensors(held)
        save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _put(document: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        document.pop(name)
    else:
        document[name] = value
