"""What is known of a target, a drafter and an engine before anything is judged. Plain data: `reading.py` and `gguf_files.py`
fill it, tests write it by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash2_core.checkpoint.examination import Weights
from dflash2_core.compatibility import TargetFacts
from dflash2_core.config import DrafterConfig
from dflash2_core.engines import EngineReport

GGUF = "gguf"


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """tokens: id -> its piece, as a vocabulary writes it; merges: of a BPE, in order, None for another kind."""

    tokens: Mapping[int, str]
    merges: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class TargetSide:
    """A target as its files describe it.

    layout          "folder" (Hugging Face) or "gguf"
    sizes           None where they could not be read: `problems` says why
    dtype           that its weights are in, as torch or ggml call it
    context_length  positions it was made for
    """

    path: Path
    layout: str = "folder"
    sizes: TargetFacts | None = None
    architecture: str | None = None
    dtype: str | None = None
    context_length: int | None = None
    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DrafterSide:
    """A drafter as its files describe it.

    layout          "zlab", "speculators" or "gguf"
    config          None where it could not be read: `problems` says why
    document        config.json as it stands; empty for a GGUF
    num_bytes       of the weights as they are stored
    dtypes          type -> weights stored so, the most frequent first
    weights         of each tensor what one pass over it told
    own             optional tensors that it brings
    licences        where one is stated -> the licence
    tokenizer       its own, where it brings one
    manifest        every way in which it is not what its manifest says; None: it has no manifest
    """

    path: Path
    layout: str = "zlab"
    config: DrafterConfig | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    num_bytes: int = 0
    num_parameters: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, Weights] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    licences: Mapping[str, str] = field(default_factory=dict)
    base_model: str | None = None
    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    manifest: tuple[str, ...] | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineSide:
    """An engine as its adapter found it.

    asked      whether the user named it
    stated     the variable with which the user said where it is; None: it was looked for
    arguments  of the user, for this engine
    variables  the environment it would start in
    refusal    why its adapter would not start the pair, as it said it; None: it would, or was not asked
    command    what its adapter would run for the pair
    """

    report: EngineReport
    asked: bool = False
    stated: str | None = None
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None
    command: str | None = None

    @property
    def name(self) -> str:
        return self.report.name

    @property
    def absent(self) -> bool:
        """It is nowhere, and nobody said that it should be somewhere."""
        return self.report.program is None and self.stated is None
