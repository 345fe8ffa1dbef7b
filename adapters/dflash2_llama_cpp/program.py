"""Where llama-server is, which version, and whether it knows DFlash 2."""

import mmap
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash2_core.engine_program import built_program, stated_program
from dflash2_core.errors import EngineError

VARIABLE = "DFLASH2_LLAMA_CPP_SERVER"
PROGRAM = "llama-server"
BUILT_BY_CI = Path(".venvs/llama-cpp/bin") / PROGRAM
TESTED_BUILD = 11434
MARK = b"%s.selector_top_k"
"""A key that only a llama.cpp with DFlash 2 reads, as it stands in the program or in its libllama."""
VERSION = re.compile(r"version: (?P<name>\S+) \((?:build (?P<build>\d+), commit )?(?P<commit>[\w-]+)\)")
SECONDS_TO_ANSWER = 60


@dataclass(frozen=True, kw_only=True)
class Version:
    """text: in its own words; build: None where it does not count its builds."""

    text: str
    build: int | None


def find_program(setting: Path | None) -> Path:
    """`setting`, else the environment variable, else on PATH, else what `ci/llama_cpp.sh` built; EngineError if nowhere."""
    stated = stated_program(setting, VARIABLE, expected=f"the path of {PROGRAM}")
    on_path = shutil.which(PROGRAM)
    if found := stated or (Path(on_path) if on_path else built_program(BUILT_BY_CI)):
        return found
    raise EngineError(
        f"{PROGRAM} was not found: set {VARIABLE}, put it on PATH, or build it in a checkout of dflash2 with "
        "`bash ci/llama_cpp.sh` (ten to fifteen minutes on two cores)"
    )


def read_version(program: Path) -> Version:
    """What the program says of itself; EngineError if it cannot be run, or is none of llama.cpp's."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=SECONDS_TO_ANSWER, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EngineError(f"{program} --version could not be run: {problem}") from None
    said = done.stdout + done.stderr
    found = VERSION.search(said)
    if found is None:
        last = (said.strip().splitlines() or ["nothing"])[-1]
        raise EngineError(f"{program} --version says no version of llama.cpp; it said: {last}")
    # Older ones say "version: BUILD (COMMIT)".
    build = found["build"] or (found["name"] if found["name"].isdigit() else None)
    text = found["name"] if found["build"] is None else f"{found['name']} (build {found['build']}, commit {found['commit']})"
    return Version(text=text, build=None if build is None else int(build))


def knows_dflash2(program: Path) -> bool:
    """Looked up in the program and in the libllama that belongs to it: only a trial with a drafter could tell otherwise."""
    return any(_holds(path, MARK) for path in _where_it_could_stand(program.resolve()))


def _where_it_could_stand(program: Path) -> Iterator[Path]:
    yield program
    libraries = program.parent.parent / "lib"
    for found in (program.parent.glob("libllama*"), libraries.glob("libllama*"), libraries.glob("*/libllama*")):
        yield from sorted(found)


def _holds(path: Path, mark: bytes) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(mark) >= 0
    except (OSError, ValueError):  # not readable, or empty
        return False
