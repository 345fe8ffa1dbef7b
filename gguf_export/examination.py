"""What a drafter's GGUF is and everything that is wrong with it, in the terms of `dflash2 inspect`."""

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from dflash2_core.checkpoint.examination import Examination, weight_findings
from dflash2_core.config import DrafterConfig, InvalidConfigError
from dflash2_core.config.shapes import optional_tensor_shapes
from gguf_export.header import Header
from gguf_export.keys import read_config
from gguf_export.reading import Tensors, drafter_header, places_of, tensor_problems

LAYOUT = "gguf"
TOLD = ("general.", "tokenizer.ggml.model", "tokenizer.ggml.pre")
"""Keys that are told as they stand."""


def examine(path: str | Path) -> Examination:
    """Look at the GGUF `path`, every weight included; raises CheckpointError for what is no drafter's GGUF."""
    header = drafter_header(path)
    by_dtype: Counter[str] = Counter()
    for place in header.tensors.values():
        by_dtype[place.kind.name.lower()] += prod(place.shape)
    config, findings = _config(header)
    places = {} if config is None else places_of(header, config)
    if config is not None:
        findings += tensor_problems(header, config)
    if not findings:
        tensors = Tensors(header.path, places)
        findings += weight_findings((name, lambda name=name: tensors[name]) for name in tensors)  # type: ignore[misc]
    return Examination(
        path=header.path,
        layout=LAYOUT,
        config=config,
        files=[header.path.name],
        num_tensors=len(header.tensors),
        num_parameters=by_dtype.total(),
        num_bytes=sum(place.num_bytes for place in header.tensors.values()),
        parameters_by_dtype=dict(by_dtype.most_common()),
        own_tensors=[name for name in optional_tensor_shapes(config) if name in places] if config is not None else [],
        licence=_text(header, "general.license"),
        metadata={name: _told(key.value) for name, key in header.keys.items() if name.startswith(TOLD)},
        findings=findings,
    )


def _config(header: Header) -> tuple[DrafterConfig | None, list[str]]:
    try:
        return read_config(header), []
    except InvalidConfigError as error:
        return None, list(error.problems)


def _text(header: Header, name: str) -> str | None:
    found = header.value(name)
    return found if isinstance(found, str) else None


def _told(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return ", ".join(item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in value)
