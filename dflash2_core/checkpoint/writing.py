"""Writing a checkpoint: byte for byte the same for the same drafter, and never half of one that anyone would read.

Both files are complete under other names first. Then the old config.json goes, the weights come, the new config.json comes: a
process that dies before leaves the old checkpoint, and one that dies between leaves a folder without a config.json, which is
refused.

safetensors' own writer may order metadata differently in each run; the format is simple enough to write here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from dflash2_core.checkpoint.files import CONFIG, WEIGHTS, other_weights
from dflash2_core.checkpoint.header import is_regular
from dflash2_core.checkpoint.reading import DTYPES, InvalidCheckpointError
from dflash2_core.config import DrafterConfig
from dflash2_core.config.documents import read_object
from dflash2_core.config.drafter import is_drafter
from dflash2_core.config.reading import named, placed, shown
from dflash2_core.config.shapes import optional_tensor_shapes, tensor_shapes
from dflash2_core.errors import CheckpointError

STORED_DTYPES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNMENT = 8


def write_checkpoint(
    config: DrafterConfig,
    tensors: Mapping[str, Tensor],
    path: str | Path,
    *,
    layout: str = "zlab",
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write config.json and model.safetensors of a drafter into the folder `path`, which is made if need be.

    tensors   by canonical name: all that `tensor_shapes` lists, and any of `optional_tensor_shapes`; float dtypes
    layout    "zlab" or "speculators": the words of config.json; the tensors have the same names in both
    metadata  strings for the safetensors header, beside its `format`
    Raises CheckpointError for tensors that are not this config's, metadata that is not strings, and a folder that holds
    another model or other weights too; ConfigError where the layout cannot say what the config says.
    """
    if found := [*_tensor_problems(config, tensors), *_metadata_problems(metadata or {})]:
        raise InvalidCheckpointError(Path(path), found)
    document = config.to_dict(layout) | {"dtype": str(tensors["fc.weight"].dtype).removeprefix("torch.")}
    folder = _prepared(Path(path))
    temporary = {name: folder / f".{name}.writing" for name in (WEIGHTS, CONFIG)}
    try:
        with temporary[WEIGHTS].open("wb") as file:
            _write_safetensors(file, tensors, {"format": "pt", **(metadata or {})})
        temporary[CONFIG].write_bytes(_json_bytes(document, indent=2) + b"\n")
        (folder / CONFIG).unlink(missing_ok=True)
        for name in (WEIGHTS, CONFIG):
            temporary[name].replace(folder / name)
    except OSError as problem:
        raise CheckpointError(f"{placed(folder)} cannot be written: {problem.strerror or problem}") from None
    finally:
        for file_path in temporary.values():
            file_path.unlink(missing_ok=True)


def _tensor_problems(config: DrafterConfig, tensors: Mapping[str, Tensor]) -> list[str]:
    needed = tensor_shapes(config)
    expected = needed | optional_tensor_shapes(config)
    problems = [f"{name} is missing" for name in needed if name not in tensors]
    for name, tensor in tensors.items():
        if name not in expected:
            problems.append(f"{named(name)} is no tensor of this config")
        elif tuple(tensor.shape) != expected[name]:
            problems.append(f"{name} has shape {list(tensor.shape)} but the config asks for {list(expected[name])}")
        elif tensor.dtype not in STORED_DTYPES:
            problems.append(f"{name} is {tensor.dtype}: expected a float type")
    return problems


def _metadata_problems(metadata: Mapping[Any, Any]) -> list[str]:
    """What safetensors' readers would refuse: anything but text by name."""
    return [
        f"metadata holds {shown(name)} = {shown(value)}: expected strings by name"
        for name, value in metadata.items()
        if not (_is_text(name) and _is_text(value))
    ]


def _is_text(value: object) -> bool:
    # A lone surrogate is no text: Python's JSON would write it, and no other reader would take it.
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _prepared(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CheckpointError(f"{placed(folder)} cannot be made: {problem.strerror or problem}") from None
    if others := other_weights(folder):
        found = ", ".join(map(named, others[:4]))
        raise CheckpointError(f"{placed(folder)} already holds other weights ({found}): choose an empty folder")
    if (folder / CONFIG).exists() and not _holds_a_drafter(folder):
        raise CheckpointError(
            f"{placed(folder)} already holds another model, since its {CONFIG} is no DFlash drafter's: choose an empty folder"
        )
    return folder


def _holds_a_drafter(folder: Path) -> bool:
    if not is_regular(folder / CONFIG):
        return False
    try:
        return is_drafter(read_object(folder / CONFIG, CheckpointError))
    except CheckpointError:
        return False


def _write_safetensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    # Wide types first keeps every tensor aligned to its own size, as safetensors' own writer does.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    reached = 0
    for name in names:
        tensor = tensors[name]
        begin, reached = reached, reached + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": STORED_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, reached],
        }
    raw = _json_bytes(header, indent=None, sort_keys=False)
    raw += b" " * (-len(raw) % ALIGNMENT)
    file.write(len(raw).to_bytes(8, "little") + raw)
    for name in names:
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        file.write(flat.view(torch.uint8).numpy().data)


def _json_bytes(document: Mapping[str, Any], *, indent: int | None, sort_keys: bool = True) -> bytes:
    separators = (",", ":") if indent is None else None
    return json.dumps(document, indent=indent, sort_keys=sort_keys, separators=separators, allow_nan=False).encode()
