"""Does this drafter's GGUF work on that target's? Asked before llama-server is started.

llama.cpp aborts on some misfits and is silent about others (a permuted tokenizer, weights that are not finite): here each is a
sentence. What a checkpoint's folder is checked for when it is exported is checked again, since a GGUF may come from elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf import GGMLQuantizationType

from dflash2_core.checkpoint.files import is_gguf
from dflash2_core.compatibility import misfits
from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import named, placed, shown
from dflash2_core.errors import CheckpointError, CompatibilityError
from gguf_export import examine
from gguf_export.header import Header, read_header
from gguf_export.keys import TOKENS
from gguf_export.names import ARCHITECTURE
from gguf_export.reading import drafter_header
from gguf_export.refusals import config_problems, own_tensor_problems
from gguf_export.target import Target, read_target

TOKENIZER_CONTENT = ("tokens", "merges", "scores")
"""What makes an id a piece of text, under `tokenizer.ggml.`; chat templates and names of special tokens may differ."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair that fits. context_length: positions the target was trained for, None if its file does not say."""

    config: DrafterConfig
    target: Target
    context_length: int | None


def open_target(path: Path) -> Header:
    """The head of a target's GGUF; CheckpointError or CompatibilityError for what llama-server could not serve."""
    if path.is_dir():
        raise CompatibilityError(
            f"{placed(path)} is a folder and llama.cpp runs a GGUF: convert it with llama.cpp's convert_hf_to_gguf.py, "
            "and give the file as the target"
        )
    header = read_header(path)
    if header.architecture == ARCHITECTURE:
        raise CompatibilityError(f"{placed(path)} is a drafter's GGUF: expected the target first, then its drafter")
    if not header.tensors and "split.count" not in header.keys:  # the first part of a split one may hold keys alone
        raise CheckpointError(f"{placed(path)} holds no weights: expected the GGUF of a whole target")
    return header


def check_pair(target_path: Path, drafter_path: Path) -> Pair:
    """The pair, every weight of the drafter looked at.

    Raises CheckpointError or ConfigError where a file is not sound, CompatibilityError with every misfit.
    """
    header = open_target(target_path)
    if not is_gguf(drafter_path):
        raise CheckpointError(f"{placed(drafter_path)} is no GGUF: expected a drafter's GGUF, or the folder of its checkpoint")
    found, drafter = examine(drafter_path), drafter_header(drafter_path)
    if found.config is None or found.findings:
        raise CheckpointError(_listed(f"{placed(drafter_path)} is no sound drafter", found.findings))
    target, config = read_target(target_path), found.config
    problems = [
        *misfits(config, target.facts, own=found.own_tensors),
        *_tokenizer_problems(drafter, header),
        *config_problems(config),
        *own_tensor_problems(found.own_tensors),
        *_type_problems(drafter),
    ]
    if problems:
        raise CompatibilityError(_listed(f"{placed(drafter_path)} does not work on {placed(target_path)}", problems))
    length = header.value(f"{target.architecture}.context_length")
    return Pair(config=config, target=target, context_length=length if isinstance(length, int) else None)


def _listed(head: str, problems: Sequence[str]) -> str:
    return f"{head}: {problems[0]}" if len(problems) == 1 else "\n- ".join([f"{head}:", *problems])


def _tokenizer_problems(drafter: Header, target: Header) -> Iterator[str]:
    for part in TOKENIZER_CONTENT:
        name = f"tokenizer.ggml.{part}"
        ours, theirs = drafter.value(name), target.value(name)
        if ours == theirs or (name != TOKENS and None in (ours, theirs)):
            continue
        if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
            yield f"{name} is not the same in both files"
            continue
        differing = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
        i = differing[0]
        yield (
            f"their tokenizers differ: {name} in {len(differing)} of {len(ours)} places, first at {i}, {_told(ours[i])} in the "
            f"drafter and {_told(theirs[i])} in the target; llama.cpp would take one's ids for the other's"
        )


def _told(value: object) -> str:
    return shown(value.decode(errors="replace") if isinstance(value, bytes) else value)


def _type_problems(drafter: Header) -> Iterator[str]:
    for name, place in drafter.tensors.items():
        only_f32 = not name.endswith(".weight") or prod(place.shape) == place.shape[-1]
        if only_f32 and place.kind != GGMLQuantizationType.F32:
            yield f"{named(name)} is stored as {place.kind.name}: llama.cpp's kernels take it as F32 only, and abort"
