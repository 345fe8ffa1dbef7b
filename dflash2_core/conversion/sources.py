"""What is converted, whatever it was stored as."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dflash2_core.checkpoint import open_checkpoint
from dflash2_core.checkpoint.examination import stated
from dflash2_core.checkpoint.files import CONFIG
from dflash2_core.config import DrafterConfig
from dflash2_core.config.documents import read_object
from dflash2_core.errors import CheckpointError


class Weights(Mapping[str, Tensor]):
    """Tensors by canonical name, each made when it is asked for: memory holds what the caller keeps."""

    def __init__(self, names: Sequence[str], load: Callable[[str], Tensor]) -> None:
        self._names, self._load = tuple(names), load

    def __getitem__(self, name: str) -> Tensor:
        return self._load(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names  # without loading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A drafter that was opened.

    layout       "zlab", "speculators" or "gguf"
    metadata     of the safetensors headers
    verifier     what a speculators config says of the target: its name and architectures; None where nothing is said
    licence, base_model   as the model card or the GGUF states them
    quantised    GGUF type -> weights that were stored so, and come as float32
    """

    path: Path
    layout: str
    config: DrafterConfig
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    verifier: Mapping[str, Any] | None = None
    licence: str | None = None
    base_model: str | None = None
    quantised: Mapping[str, int] = field(default_factory=dict)


def open_source(path: str | Path) -> Source:
    """The drafter in the folder `path`, of either layout, sharded or not. Raises what `open_checkpoint` raises."""
    checkpoint = open_checkpoint(path)
    return Source(
        path=checkpoint.path,
        layout=checkpoint.layout,
        config=checkpoint.config,
        tensors=Weights(checkpoint.tensor_names, checkpoint.tensor),
        metadata=checkpoint.metadata,
        verifier=_verifier(checkpoint.path),
        licence=stated(checkpoint.path, "license"),
        base_model=stated(checkpoint.path, "base_model"),
    )


def _verifier(folder: Path) -> Mapping[str, Any] | None:
    algorithm = read_object(folder / CONFIG, CheckpointError).get("speculators_config")
    verifier = algorithm.get("verifier") if isinstance(algorithm, dict) else None
    return verifier if isinstance(verifier, dict) and verifier.get("name_or_path") else None
