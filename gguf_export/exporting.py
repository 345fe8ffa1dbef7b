"""From a checkpoint to a GGUF: everything is checked, every weight included, before the first byte is written."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from dflash2_core.checkpoint import Checkpoint, open_checkpoint
from dflash2_core.config.reading import placed
from dflash2_core.drafter.model import OWN_EMBEDDING, OWN_MASK
from gguf_export.keys import MASK, drafter_keys, key
from gguf_export.keys import TARGET_LAYERS as TARGET_LAYERS_KEY
from gguf_export.names import gguf_names
from gguf_export.outtypes import converted, outtype_named, stored_type
from gguf_export.provenance import general_keys
from gguf_export.refusals import NotExportableError, refuse_unfit, weight_problem
from gguf_export.target import read_target
from gguf_export.writing import Planned, refuse_foreign, write

Progress = Callable[[str, float], None]
"""What is being done, and the share of it that is done, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written. parameters_by_type: GGUF type -> weights stored so."""

    path: Path
    num_bytes: int
    num_tensors: int
    parameters_by_type: dict[str, int]
    architecture: str


def export(
    drafter_path: str | Path,
    out_path: str | Path,
    *,
    tokenizer_from: str | Path,
    outtype: str,
    progress: Progress = lambda doing, share: None,
) -> Exported:
    """Write the drafter in the folder `drafter_path` as the GGUF `out_path`, which llama.cpp runs on that target.

    drafter_path    any checkpoint the core reads: z-lab or speculators layout, DFlash 1 or 2, sharded or not
    out_path        replaced where it holds a drafter's GGUF already; there only when whole
    tokenizer_from  the target: its GGUF, whose tokenizer is copied key by key, or its Hugging Face folder
    outtype         one of `OUTTYPES`; norms and base kernels are F32 always, rows that hold no whole blocks F16
    Raises ConfigError, CheckpointError or CompatibilityError, in a sentence, before anything is written: for what the core
    refuses to load, what llama.cpp cannot run, a target that does not fit, weights that are not finite or do not fit the type.
    Memory: about one tensor. The same drafter, target and type give the same bytes.
    """
    kind, path = outtype_named(outtype), Path(out_path)
    refuse_foreign(path)
    checkpoint, target = open_checkpoint(drafter_path), read_target(tokenizer_from)
    refuse_unfit(checkpoint, target)
    _refuse_weights(checkpoint, kind, lambda share: progress("checking every weight", share))
    keys = [
        *general_keys(checkpoint, target, outtype),
        *drafter_keys(checkpoint.config, mrope=target.mrope),
        key(TARGET_LAYERS_KEY, target.facts.num_layers),
        *target.tokenizer,
        key(MASK, checkpoint.config.mask_token_id),
    ]
    tensors = _planned(checkpoint, kind)
    total = sum(tensor.num_bytes for tensor in tensors)
    write(path, keys, tensors, lambda done: progress(f"writing {outtype}", done / total))
    parameters = Counter[str]()
    for tensor in tensors:
        parameters[tensor.kind.name] += prod(tensor.shape)
    return Exported(
        path=path,
        num_bytes=path.stat().st_size,
        num_tensors=len(tensors),
        parameters_by_type=dict(parameters.most_common()),
        architecture=target.architecture,
    )


def _planned(checkpoint: Checkpoint, outtype: GGMLQuantizationType) -> list[Planned]:
    found = []
    for canonical, name in gguf_names(checkpoint.config).items():
        if canonical in checkpoint.entries:
            shape = checkpoint.shapes[canonical]
            kind = stored_type(name, shape, outtype)
            found.append(Planned(name, shape, kind, partial(_load, checkpoint, canonical, kind)))
    return found


def _load(checkpoint: Checkpoint, canonical: str, kind: GGMLQuantizationType) -> NDArray[np.uint8]:
    tensor = checkpoint.tensor(canonical)
    if canonical == OWN_EMBEDDING and OWN_MASK in checkpoint.entries:
        mask = checkpoint.tensor(OWN_MASK)
        tensor = tensor.to(torch.promote_types(tensor.dtype, mask.dtype), copy=True)
        tensor[checkpoint.config.mask_token_id] = mask
    return converted(tensor, kind)


def _refuse_weights(checkpoint: Checkpoint, outtype: GGMLQuantizationType, progress: Callable[[float], None]) -> None:
    """Reads every weight: raises NotExportableError for those that are not finite, or not as `outtype`."""
    names = gguf_names(checkpoint.config)
    problems, read = [], 0
    for canonical, shape in checkpoint.shapes.items():
        # A mask row becomes a row of the embedding, in its type.
        name = names.get(canonical, names[OWN_EMBEDDING])
        row = shape if canonical in names else (1, *shape)
        problems.append(weight_problem(checkpoint, canonical, stored_type(name, row, outtype)))
        read += prod(shape)
        progress(read / checkpoint.num_parameters)
    if found := [problem for problem in problems if problem is not None]:
        raise NotExportableError(placed(checkpoint.path), found)
