"""Opening a checkpoint: config, files and headers are held against each other before a weight is touched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dflash2_core.checkpoint.files import CONFIG, find_weights, folder_at
from dflash2_core.checkpoint.header import Stored, read_header
from dflash2_core.checkpoint.names import canonical, why_refused
from dflash2_core.config import DrafterConfig, InvalidConfigError, diagnose
from dflash2_core.config.documents import read_object
from dflash2_core.config.drafter import layout_of, other_model
from dflash2_core.config.reading import named, placed, shown
from dflash2_core.config.shapes import optional_tensor_shapes, tensor_shapes
from dflash2_core.errors import CheckpointError, ConfigError

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMED_AT_MOST = 12
NOT_FINITE = "that are no finite numbers: the file is damaged, or the training diverged"


class InvalidCheckpointError(CheckpointError):
    """A CheckpointError that carries each problem as a sentence of its own."""

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        head = f"{placed(path)}: " if len(problems) == 1 else f"{len(problems)} problems in the checkpoint {placed(path)}:\n- "
        super().__init__(head + "\n- ".join(problems))


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: its file, its name there, and what the header says of it."""

    file: Path
    stored_name: str
    stored: Stored


@dataclass(frozen=True)
class Checkpoint:
    """A drafter on disk whose every tensor has its place; weights are memory-mapped when asked for.

    layout         "zlab" or "speculators", of its config.json
    tensor_names   canonical names in order of use, optional ones last
    shapes, dtypes by canonical name
    metadata       of all files together
    """

    path: Path
    config: DrafterConfig
    layout: str
    files: tuple[Path, ...]
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self.entries)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.stored.shape for name, entry in self.entries.items()}

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: DTYPES[entry.stored.dtype] for name, entry in self.entries.items()}

    @property
    def num_parameters(self) -> int:
        return sum(prod(shape) for shape in self.shapes.values())

    @property
    def num_bytes(self) -> int:
        return sum(entry.stored.end - entry.stored.begin for entry in self.entries.values())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor under its canonical name, one at a time."""
        for name in self.entries:
            yield name, self.tensor(name)

    def tensor(self, name: str) -> Tensor:
        """The tensor `name`, memory-mapped, in its stored dtype. CheckpointError when its file was damaged since."""
        if name not in self.entries:
            raise CheckpointError(f"{placed(self.path)} has no tensor {shown(name)}")
        return read_tensor(self.entries[name])

    def require_finite(self) -> "Checkpoint":
        """Itself, every weight looked at; CheckpointError for a tensor with values that are no finite numbers.

        For an engine that loads the weights by itself: `load_drafter` looks at them anyway.
        """
        for name, tensor in self.tensors():
            if not is_finite(tensor):
                raise CheckpointError(f"{placed(self.path)}: {name} holds values {NOT_FINITE}")
        return self


@dataclass
class Survey:
    """All that could be learnt of a folder, and all that is wrong with it. `config` None: it could not be read."""

    path: Path
    layout: str
    config: DrafterConfig | None
    config_problems: list[str]
    files: list[Path] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open the drafter in the folder `path`.

    Raises ConfigError for its config and CheckpointError for its files and tensors, naming everything that is wrong:
    a missing or surplus tensor, a shape unlike the config's, a dtype that is no float, pickles, shards elsewhere.
    """
    found = survey(path)
    if found.config is None or found.config_problems:
        raise InvalidConfigError(found.config_problems, where=placed(found.path / CONFIG))
    if found.problems:
        raise InvalidCheckpointError(found.path, found.problems)
    return Checkpoint(found.path, found.config, found.layout, tuple(found.files), found.entries, found.metadata)


def survey(path: str | Path) -> Survey:
    """Look at the folder `path` without reading weights; raises only where there is no drafter's folder at all."""
    try:
        return _survey(folder_at(path))
    except OSError as problem:
        raise CheckpointError(f"{placed(path)} cannot be read: {problem.strerror or problem}") from None


def _survey(folder: Path) -> Survey:
    document = read_object(folder / CONFIG, ConfigError)
    if (stranger := other_model(document)) is not None:
        raise ConfigError(f"{placed(folder)}: {stranger}")
    config, config_problems = diagnose(document)
    found = Survey(folder, layout_of(document), config, config_problems)
    _read_files(found)
    if config is not None:
        _hold_against(config, found)
    return found


def is_finite(tensor: Tensor) -> bool:
    """Whether every value is a finite number; the least and the greatest tell of a NaN too, in one pass, without memory."""
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def read_tensor(entry: Entry) -> Tensor:
    """One tensor from its file, memory-mapped."""
    try:
        with safe_open(entry.file, framework="pt") as file:
            tensor: Tensor = file.get_tensor(entry.stored_name)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as problem:
        raise CheckpointError(
            f"{placed(entry.file)}: {named(entry.stored_name)} cannot be read: {named(str(problem))}"
        ) from None
    if tuple(tensor.shape) != entry.stored.shape:
        raise CheckpointError(
            f"{placed(entry.file)} changed while it was open: {named(entry.stored_name)} has another shape now"
        )
    return tensor


def _read_files(found: Survey) -> None:
    weights = find_weights(found.path)
    found.problems += weights.problems
    for file in weights.files:
        try:
            tensors, metadata = read_header(file)
        except CheckpointError as error:
            found.problems.append(str(error))
            continue
        found.files.append(file)
        found.metadata |= metadata
        if weights.index is not None:
            found.problems += _index_problems(file, tensors, weights.index)
        for name, stored in tensors.items():
            _enter(found, Entry(file, name, stored))


def _index_problems(file: Path, tensors: Mapping[str, Stored], index: Mapping[str, str]) -> list[str]:
    placed = {name for name, shard in index.items() if shard == file.name}
    unlisted = sorted(set(tensors) - placed)
    absent = sorted(placed - set(tensors))
    return [
        *([f"{named(file.name)} holds tensors that the index does not place there: {listed(unlisted)}"] if unlisted else []),
        *([f"the index places tensors in {named(file.name)} that it does not hold: {listed(absent)}"] if absent else []),
    ]


def _enter(found: Survey, entry: Entry) -> None:
    name = canonical(entry.stored_name)
    if name in found.entries:
        other = found.entries[name]
        found.problems.append(
            f"{named(name)} is stored twice: as {named(other.stored_name)} in {named(other.file.name)} and as "
            f"{named(entry.stored_name)} in {named(entry.file.name)}; keep one"
        )
        return
    found.entries[name] = entry


def _hold_against(config: DrafterConfig, found: Survey) -> None:
    """Every tensor consumed or refused by name; the known ones are put in order of use."""
    needed, optional = tensor_shapes(config), optional_tensor_shapes(config)
    expected = needed | optional
    if missing := [name for name in needed if name not in found.entries]:
        found.problems.append(f"{len(missing)} of {len(needed)} tensors missing: {listed(missing)}")
    found.problems += _surplus_problems(config, [name for name in found.entries if name not in expected])
    found.entries = {name: found.entries[name] for name in expected if name in found.entries}
    for name, entry in found.entries.items():
        if entry.stored.shape != expected[name]:
            found.problems.append(
                f"{name} has shape {list(entry.stored.shape)} in {named(entry.file.name)} but the config asks for "
                f"{list(expected[name])}"
            )
        if entry.stored.dtype not in DTYPES:
            found.problems.append(
                f"{name} is stored as {shown(entry.stored.dtype)}: expected {', '.join(DTYPES)}; quantised weights "
                "are not read, convert the drafter back first"
            )


def _surplus_problems(config: DrafterConfig, surplus: Sequence[str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name in sorted(surplus):
        by_reason.setdefault(why_refused(name, config.version), []).append(name)
    return [f"tensors refused, {reason}: {listed(names)}" for reason, names in by_reason.items()]


def listed(names: Sequence[str]) -> str:
    """Names for a sentence: the first few, and how many more."""
    first = ", ".join(map(named, names[:NAMED_AT_MOST]))
    return first if len(names) <= NAMED_AT_MOST else f"{first} and {len(names) - NAMED_AT_MOST} more"
