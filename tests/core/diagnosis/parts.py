"""The embedded pair as facts, and engines that are none: what they say stands in their report."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from dflash2_core.assets import tiny_pair
from dflash2_core.diagnosis import Finding
from dflash2_core.diagnosis.facts import DrafterSide, EngineSide, TargetSide
from dflash2_core.diagnosis.reading import read_drafter, read_target
from dflash2_core.engines import Command, EngineOptions, EngineReport, Server
from dflash2_core.errors import Dflash2Error
from tests.core.toys import drafter_config

ROUTES = {"vllm": "plugin", "sglang": "plugin", "llama-cpp": "native"}
QUIET = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""An environment that nothing can be said of."""


@cache
def target() -> TargetSide:
    return read_target(tiny_pair().target)


@cache
def drafter() -> DrafterSide:
    return read_drafter(tiny_pair().drafter)


def drafter_with(**changes: object) -> DrafterSide:
    """The toy drafter's config with some fields changed, in the place of the embedded one's."""
    return replace(drafter(), config=drafter_config(**changes))


def report(name: str, **changes: Any) -> EngineReport:
    """Of an engine that is there, tested and sound."""
    fields: dict[str, Any] = {
        "name": name,
        "program": Path("/somewhere") / name,
        "version": "1.0",
        "tested": True,
        "route": ROUTES[name],
    }
    return EngineReport(**fields | changes)


def engine(name: str, *arguments: str, variables: dict[str, str] | None = None, **changes: Any) -> EngineSide:
    """As `examining.py` hands it to the subjects; changes: of its report."""
    return EngineSide(
        report=report(name, **changes), asked=True, arguments=arguments, variables=QUIET if variables is None else variables
    )


def told(findings: Any) -> dict[str, str]:
    """Level -> every sentence of that level, one after the other."""
    by_level: dict[str, str] = {}
    found: list[Finding] = list(findings)
    for finding in found:
        assert finding.mend, finding
        by_level[finding.level] = f"{by_level.get(finding.level, '')}{finding.subject}: {finding.reason} -> {finding.mend}\n"
    return by_level


class FakeEngine:
    """Behind the Engine protocol: reports what it was given, refuses or takes pairs, starts nothing."""

    def __init__(self, found: EngineReport, *, refusal: Dflash2Error | None = None) -> None:
        self.name, self._report, self._refusal = found.name, found, refusal
        self.asked_for: list[tuple[Path, Path | None, EngineOptions]] = []

    @property
    def interpreter(self) -> Path:
        assert self._report.program is not None
        return self._report.program

    def probe(self) -> EngineReport:
        return self._report

    def command(self, target: Path, drafter: Path | None, options: EngineOptions) -> Command:
        self.asked_for.append((target, drafter, options))
        if self._refusal is not None:
            raise self._refusal
        return Command(argv=("serve", str(target), str(drafter)))

    def start(self, target: Path, drafter: Path | None, options: EngineOptions) -> Server:
        raise AssertionError("a doctor starts nothing")

    def attach(self, url: str, options: EngineOptions, *, drafts: bool) -> Server:
        raise AssertionError("a doctor asks no server")
