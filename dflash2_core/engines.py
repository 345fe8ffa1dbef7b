"""What an engine's adapter offers, and how adapters are found.

An adapter is a package that names its `Engine` in the entry-point group `dflash2.engines`; this module imports none of them.
`dflash2 serve` is one caller, tests and benchmarks are others.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, cast

from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.config import DrafterConfig
from dflash2_core.errors import CompatibilityError, EngineError
from dflash2_core.sampling import SamplingParams

GROUP = "dflash2.engines"
OWN = "transformers"
"""The core's own engine, which needs no adapter."""
Route = Literal["native", "plugin", "none"]
"""How an engine comes to run DFlash 2: by itself, through this project's plugin, or not at all."""
DTYPES = ("float32", "float16", "bfloat16")
"""What an engine can be asked to compute in."""


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """What was found of an engine.

    name      as in `dflash2 serve --engine`
    program   what runs it: its own Python, or the program itself where it is none of Python's
    version   in its own words; None if it could not be asked
    tested    whether this project's tests ran with exactly this version
    route     see `Route`
    hooks     what a plugin touches -> its state; empty for a native engine
    notes     see `Engine.notes`
    problems  why it cannot be used, as sentences; empty if it can
    """

    name: str
    program: Path | None
    version: str | None
    tested: bool
    route: Route
    hooks: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        plain = asdict(self)
        return plain | {"program": None if self.program is None else str(self.program)}


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How an engine is started. What an adapter cannot honour it refuses.

    host, port     where it listens; port 0 lets the system choose one
    parallel       requests decoded at once
    context        positions of one request, prompt and output together; None: the engine's own choice
    num_drafts     drafts per cycle; None: all that the drafter has, block size - 1
    dtype          of `DTYPES`, what is computed in; None: the engine's choice, for most the checkpoint's own. Weights of a GGUF
                   stay as they are stored
    drafter_dtype  how the drafter's weights are stored where an engine needs a file of its own; None: the adapter's choice
    memory         share for an engine that takes as much as it may: of the device's memory (vLLM), or of what is free when it
                   starts (SGLang); of no effect where an engine takes what it needs (llama.cpp); None: the engine's choice
    cache          folder for files made for the engine; None: the user's cache
    log            file of the engine's own words; None: one in a temporary folder
    ready_within   seconds until it has to answer
    extra          arguments handed on to the engine as they are
    """

    host: str = "127.0.0.1"
    port: int = 0
    parallel: int = 1
    context: int | None = None
    num_drafts: int | None = None
    dtype: str | None = None
    drafter_dtype: str | None = None
    memory: float | None = None
    cache: Path | None = None
    log: Path | None = None
    ready_within: float = 600.0
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise EngineError(f"the port is {self.port}: expected 0 to {2**16 - 1}, where 0 lets the system choose")
        for name, least in (("parallel", 1), ("context", 2), ("num_drafts", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise EngineError(f"{name} is {value}: expected at least {least}")
        if self.dtype not in (None, *DTYPES):
            raise EngineError(f"the dtype is {self.dtype}: expected one of {', '.join(DTYPES)}")
        if self.memory is not None and not 0 < self.memory <= 1:
            raise EngineError(f"the share of memory is {self.memory}: expected more than 0, and 1 at most")

    @property
    def said_already(self) -> dict[str, str]:
        """Options of an engine that these leave no room for -> what to do instead."""
        return {} if self.dtype is None else {"--dtype": f"it is {self.dtype} already: use dflash2's own option instead"}

    def drafts_of(self, config: DrafterConfig) -> int:
        """Drafts per cycle, said to an engine whatever its own default; CompatibilityError for more than a block has."""
        if self.num_drafts is not None and self.num_drafts > config.num_drafts:
            raise CompatibilityError(
                f"{self.num_drafts} drafts were asked for, and a drafter of block size {config.block_size} makes "
                f"{config.num_drafts}"
            )
        return self.num_drafts or config.num_drafts


@dataclass(frozen=True, kw_only=True)
class Command:
    """Exactly what is run. env: the variables it needs beside the caller's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """As a shell would take it."""
        return shlex.join([*(f"{name}={value}" for name, value in self.env.items()), *self.argv])


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What one request came to, in ids.

    token_ids         every id, the one that ended the text included
    text              as the engine tells it
    finish_reason     "stop" (end of sequence, stop string) or "length" (budget, context limit)
    num_drafted       drafts made for it        num_accepted  those that the target kept
    num_cached        ids of the prompt that the engine had not to compute again
    """

    token_ids: list[int]
    text: str
    finish_reason: str
    num_drafted: int
    num_accepted: int
    num_cached: int = 0


class Server(Protocol):
    """A running engine. A context manager: leaving it stops the engine; its log stays."""

    base_url: str
    """Of its OpenAI API, `/v1` included."""
    log: Path
    takes_seeds: bool
    """Whether a request may have one."""

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generated]:
        """Ids in, ids out, by the engine's own endpoint; params: one for all prompts, or one each.

        Raises SamplingError for an option that the engine would not honour exactly, EngineError where it fails.
        """
        ...

    def acceptance(self) -> AcceptanceStats:
        """Over every request since the start, whoever asked."""
        ...

    def stop(self) -> None:
        """Ends it; nothing happens when it has ended already."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class Engine(Protocol):
    """An engine as its adapter knows it. Made without importing the engine, by `Engine(program=None)`."""

    name: str
    notes: tuple[str, ...]
    """What a user should know of this engine's way with drafts, whatever is installed."""

    @property
    def interpreter(self) -> Path:
        """What runs it (see `EngineReport.program`): setting, environment variable, else where `ci/` put it."""
        ...

    def probe(self) -> EngineReport:
        """Looks, and raises nothing: what is wrong stands in the report."""
        ...

    def command(self, target: Path, drafter: Path | None, options: EngineOptions) -> Command:
        """Checks the pair and says what would be run. drafter None: the target alone.

        Raises EngineError, ConfigError, CheckpointError or CompatibilityError, in sentences, for everything that would make
        the engine fail, or draft nothing.
        """
        ...

    def start(self, target: Path, drafter: Path | None, options: EngineOptions) -> Server:
        """`command`, run, until it answers."""
        ...

    def attach(self, url: str, options: EngineOptions, *, drafts: bool) -> Server:
        """A server of this engine that runs already, and is left running. drafts: whether it has a drafter.

        Raises EngineError where none answers.
        """
        ...


def engine_names() -> list[str]:
    """The engines whose adapters are installed."""
    return sorted(point.name for point in entry_points(group=GROUP))


def meant(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'vllm'?)` behind a name that is nearly one of the known; else nothing."""
    near = get_close_matches(name.lower().replace("_", "-"), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def find_engine(name: str, program: Path | None = None) -> Engine:
    """The adapter of the engine `name`; EngineError if none is installed. program: overrides where the engine is looked for."""
    points: list[EntryPoint] = [point for point in entry_points(group=GROUP) if point.name == name]
    if not points:
        known = engine_names()
        raise EngineError(
            f"there is no adapter for the engine {name!r}{meant(name, known)}; installed: {', '.join(known) or 'none'}"
        )
    return cast(Engine, points[0].load()(program=program))
