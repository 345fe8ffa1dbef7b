"""Drafters made of the embedded one: of DFlash 1, and spoilt ones."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash2_core import Drafter, load_drafter, save_drafter
from dflash2_core.assets import tiny_pair


def write_dflash1(folder: Path) -> Path:
    """The embedded drafter without its convolutions and its selector: it drafts worse, and by DFlash 1's rules."""
    drafter = load_drafter(tiny_pair().drafter)
    stripped = replace(
        drafter.config, version=1, conv_kernel_size=None, conv_group_size=None, selector_rank=None, selector_top_k=None
    )
    first = Drafter(stripped).to(drafter.fc.weight.dtype)
    kept = first.state_dict().keys()
    first.load_state_dict({name: tensor for name, tensor in drafter.state_dict().items() if name in kept})
    save_drafter(first, folder)
    return folder


def spoilt(
    folder: Path,
    *,
    config: Callable[[dict[str, Any]], None] | None = None,
    tensors: Callable[[dict[str, Tensor]], None] | None = None,
) -> Path:
    """A copy of the embedded drafter, its config.json and its tensors changed in place by these functions."""
    shutil.copytree(tiny_pair().drafter, folder)
    if config is not None:
        document = json.loads((folder / "config.json").read_text())
        config(document)
        (folder / "config.json").write_text(json.dumps(document))
    if tensors is not None:
        loaded = load_file(folder / "model.safetensors")
        tensors(loaded)
        save_file(loaded, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
