"""An engine under test: how its two sides are reached, the target alone and with the drafter."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash2_core import __version__
from dflash2_core.conformance.subjects import Subject
from dflash2_core.engines import OWN, Engine, EngineOptions, engine_names, find_engine
from dflash2_core.errors import EngineError

if TYPE_CHECKING:
    from dflash2_core.conformance.reference import Reference

CHUNK = 1 << 20


@dataclass(frozen=True)
class UnderTest:
    """target, drafter  as the engine takes them

    reference  what the core knows of the pair by itself; None: nothing, for an engine with an adapter only
    urls     of two servers that run already, the target's alone and with the drafter; None: they are started, and stopped
    program  the engine's, None: where its adapter finds it
    """

    engine: str
    target: Path
    drafter: Path
    options: EngineOptions
    reference: "Reference | None"
    program: Path | None = None
    urls: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        known = [OWN, *engine_names()]
        if self.engine not in known:
            raise EngineError(f"there is no engine {self.engine!r}: expected one of {', '.join(known)}")
        if self.engine == OWN and self.reference is None:
            raise EngineError(f"the engine {OWN} runs the target itself: give its folder")
        if self.engine == OWN and self.urls is not None:
            raise EngineError(f"the engine {OWN} is no server: leave the URLs out, or name the engine that they are of")

    @contextmanager
    def plain(self) -> Iterator[Subject]:
        """The target alone."""
        with self._side(drafts=False) as subject:
            yield subject

    @contextmanager
    def drafted(self) -> Iterator[Subject]:
        """The target with the drafter."""
        with self._side(drafts=True) as subject:
            yield subject

    def facts(self) -> dict[str, str]:
        """What was tested with what, for a report."""
        facts = {"dflash2": __version__, "engine": self.engine}
        if self.engine != OWN:
            report = self._adapter().probe()
            facts |= {
                "version": f"{report.version or 'unknown'}, {'tested' if report.tested else 'NOT a tested version'}",
                "route": report.route,
            }
        if self.urls is not None:
            facts |= dict(zip(("plain server", "drafting server"), self.urls, strict=True))
        facts |= {"target": str(self.target), "target sha256": _sha256(self.target)}
        facts |= {"drafter": str(self.drafter), "drafter sha256": _sha256(self.drafter)}
        known = "its tokenizer only" if self.reference is None else str(self.reference.folder)
        facts |= {"reference": known, "computes in": self._computes_in(), "requests at once": str(self.options.parallel)}
        return facts | ({"engine arguments": " ".join(self.options.extra)} if self.options.extra else {})

    @contextmanager
    def _side(self, *, drafts: bool) -> Iterator[Subject]:
        if self.engine == OWN and self.reference is not None:
            yield self.reference.drafted() if drafts else self.reference.plain()
        elif self.urls is not None:
            yield self._adapter().attach(self.urls[drafts], self.options, drafts=drafts)
        else:
            with self._adapter().start(self.target, self.drafter if drafts else None, self.options) as server:
                yield server

    def _computes_in(self) -> str:
        if self.engine == OWN and self.reference is not None:
            return str(self.reference.target.dtype).removeprefix("torch.")
        return self.options.dtype or "the engine's own choice"

    def _adapter(self) -> Engine:
        return find_engine(self.engine, self.program)


def _sha256(path: Path) -> str:
    """Of a file, or of the weights in a folder, one after the other in the order of their names."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
