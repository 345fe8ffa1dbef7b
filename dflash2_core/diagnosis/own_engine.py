"""The core's own engine, looked at like those of adapters: it has none, and runs where this does."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dflash2_core.engines import OWN, Command, EngineOptions, EngineReport

TESTED, FLOOR = "5.24.0", (5, 4)
"""The Transformers that this project's tests run with, and the oldest that it takes."""
OLD = "Transformers {version} is too old: pip install 'dflash2[transformers]'"
MISSING = "Transformers is not installed beside dflash2: pip install 'dflash2[transformers]'"


class OwnEngine:
    """See `dflash2_core.engines.Engine`, of which this has what a look needs; nothing is imported."""

    name = OWN

    def probe(self) -> EngineReport:
        """The version of Transformers, and no DFlash 2 where there is none."""
        try:
            found = version("transformers")
        except PackageNotFoundError:
            found = None
        problem = MISSING if found is None else OLD.format(version=found) if _is_old(found) else None
        return EngineReport(
            name=self.name,
            program=None if found is None else Path(sys.executable),
            version=found,
            tested=found == TESTED,
            route="native" if problem is None else "none",
            problems=() if problem is None else (problem,),
        )

    def command(self, target: Path, drafter: Path | None, _: EngineOptions) -> Command:
        """What `dflash2 generate` is asked; the pair was judged by its files before."""
        pair = ("--target", str(target)) if drafter is None else ("--target", str(target), "--drafter", str(drafter))
        return Command(argv=("dflash2", "generate", *pair))


def _is_old(found: str) -> bool:
    """By its first two numbers; one that has no such numbers is not judged."""
    numbers = found.split(".")[:2]
    return all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) < FLOOR
