"""What a checkpoint is and everything that is wrong with it: what `dflash2 inspect` shows."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash2_core.checkpoint.header import is_regular
from dflash2_core.checkpoint.reading import DTYPES, Entry, listed, read_tensor, survey
from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import named
from dflash2_core.config.shapes import optional_tensor_shapes
from dflash2_core.errors import CheckpointError

PIECE = 2**24
"""Elements looked at at once: bounds memory whatever a tensor's size."""
FLOAT16_LARGEST = 65504.0
README_BYTES = 2**16


@dataclass(kw_only=True)
class Examination:
    """config None: it could not be read, `findings` says why. The counts are of what the headers state."""

    path: Path
    layout: str
    config: DrafterConfig | None
    files: list[str]
    num_tensors: int
    num_parameters: int
    num_bytes: int
    parameters_by_dtype: dict[str, int]
    own_tensors: list[str]
    licence: str | None
    metadata: dict[str, str]
    findings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`; numbers and names only, no sentences but the findings."""
        return {
            "path": str(self.path),
            "layout": self.layout,
            **(_described(self.config) if self.config is not None else {}),
            "files": self.files,
            "num_tensors": self.num_tensors,
            "num_parameters": self.num_parameters,
            "num_bytes": self.num_bytes,
            "parameters_by_dtype": self.parameters_by_dtype,
            "own_tensors": self.own_tensors,
            "licence": self.licence,
            "metadata": self.metadata,
            "findings": self.findings,
        }


def examine(path: str | Path) -> Examination:
    """Look at the folder `path`, every weight included; raises CheckpointError or ConfigError if it is no drafter's."""
    found = survey(path)
    entries = found.entries.values()
    by_dtype: Counter[str] = Counter()
    for entry in entries:
        by_dtype[entry.stored.dtype.lower()] += prod(entry.stored.shape)
    optional = {} if found.config is None else optional_tensor_shapes(found.config)
    return Examination(
        path=found.path,
        layout=found.layout,
        config=found.config,
        files=[file.name for file in found.files],
        num_tensors=len(found.entries),
        num_parameters=by_dtype.total(),
        num_bytes=sum(entry.stored.end - entry.stored.begin for entry in entries),
        parameters_by_dtype=dict(by_dtype.most_common()),
        own_tensors=[name for name in optional if name in found.entries],
        licence=stated_licence(found.path),
        metadata=found.metadata,
        findings=[*found.config_problems, *found.problems, *_weight_findings(found.entries)],
    )


def stated_licence(folder: Path) -> str | None:
    """The licence as README.md's front matter names it."""
    return stated(folder, "license")


def stated(folder: Path, name: str) -> str | None:
    """What README.md's front matter says of `name` (license, base_model), as model cards state it; the first of a list."""
    readme = folder / "README.md"
    if not is_regular(readme):
        return None
    try:
        with readme.open("rb") as file:
            text = file.read(README_BYTES).decode("utf-8", errors="replace")
    except OSError:  # a card that may not be read states nothing
        return None
    front = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    found = re.search(rf"^{name}:[ \t]*(?:\n[ \t]*-[ \t]+)?(\S.*?)[ \t]*$", front[1], re.MULTILINE) if front else None
    return found[1].strip("\"'") if found else None


def _described(config: DrafterConfig) -> dict[str, Any]:
    return {
        "version": config.version,
        "block_size": config.block_size,
        "num_drafts": config.num_drafts,
        "target_layer_ids": list(config.target_layer_ids),
        "num_target_layers": config.num_target_layers,
        "mask_token_id": config.mask_token_id,
        "layers": [
            {"window": window, "causal": causal}
            for window, causal in zip(config.layer_windows, config.layer_causal, strict=True)
        ],
        "rope": config.rope_parameters,
        "conv_kernel_size": config.conv_kernel_size,
        "conv_group_size": config.conv_group_size,
        "selector_rank": config.selector_rank,
        "selector_top_k": config.selector_top_k,
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.target_hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "input_embedding_scale": config.input_embedding_scale,
        "output_multiplier": config.output_multiplier,
        "final_logit_softcapping": config.final_logit_softcapping,
    }


@dataclass
class Weights:
    """What one pass over a tensor tells."""

    not_finite: int
    largest: float

    @property
    def zero(self) -> bool:
        return self.not_finite == 0 and self.largest == 0


def _weight_findings(entries: dict[str, Entry]) -> Iterator[str]:
    floats = {name: entry for name, entry in entries.items() if entry.stored.dtype in DTYPES}
    return weight_findings((name, lambda entry=entry: read_tensor(entry)) for name, entry in floats.items())  # type: ignore[misc]


def weight_findings(tensors: Iterable[tuple[str, Callable[[], Tensor]]]) -> Iterator[str]:
    """What the weights themselves tell, as sentences: one pass over each, under its canonical name."""
    at_start = []
    for name, load in tensors:
        try:
            weights = look(load())
        except CheckpointError as error:
            yield str(error)
            continue
        if weights.not_finite:
            yield f"{named(name)} holds {weights.not_finite:,} values that are no finite numbers"
        if weights.largest > FLOAT16_LARGEST:
            yield f"{named(name)} holds {weights.largest:.3g}: above what float16 can hold"
        if weights.zero and name.endswith("kernel_projection.weight"):
            at_start.append(name.removesuffix(".kernel_projection.weight"))
        elif weights.zero:
            yield f"{named(name)} is all zeros{_without(name)}"
    if at_start:
        yield (
            f"the dynamic kernels of {len(at_start)} convolutions are all zeros, as before training; was this drafter "
            f"trained? {listed(at_start)}"
        )


def _without(name: str) -> str:
    if name.startswith("candidate_selector."):
        return ": the selector changes nothing, as before training; was this drafter trained?"
    return ": this part of the drafter does nothing"


def look(tensor: Tensor) -> Weights:
    """One pass over `tensor`, any float type, a piece at a time."""
    not_finite, largest = 0, 0.0
    for piece in torch.split(tensor.reshape(-1), PIECE):
        finite = piece.isfinite()
        if not bool(finite.all()):
            not_finite += int((~finite).sum())
            piece = torch.where(finite, piece, torch.zeros((), dtype=piece.dtype))
        largest = max(largest, float(piece.abs().max()) if piece.numel() else 0.0)
    return Weights(not_finite, largest)
