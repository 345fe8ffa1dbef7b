"""An engine's program: where it was said or built to be, and what a Python among them answers."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash2_core.errors import EngineError


def stated_program(setting: Path | None, variable: str, *, expected: str) -> Path | None:
    """`setting`, else what the environment variable names, else None; EngineError where that is no program.

    expected: what should stand there, as it ends the sentence
    """
    stated = setting or (Path(os.environ[variable]) if os.environ.get(variable) else None)
    if stated is not None and (not os.access(stated, os.X_OK) or stated.is_dir()):
        where = "the setting" if setting else variable
        raise EngineError(f"{stated}, which {where} names, is no program: expected {expected}")
    # Absolute, or a file of this folder would be looked for on PATH. Links stay: an environment's python is one.
    return None if stated is None else Path(os.path.abspath(stated))


def built_program(path: Path) -> Path | None:
    """What a script of `ci/` put at `path` in this checkout, or in the folder one is in; None if it did not."""
    roots = (Path(__file__).parents[1], Path.cwd())
    return next((root / path for root in roots if os.access(root / path, os.X_OK)), None)


def json_answer(command: Sequence[str], *, seconds: int, asked_for: str) -> dict[str, Any]:
    """The last line that a Python prints, as JSON; EngineError where it cannot be run or says nothing of the kind."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EngineError(f"{command[0]} could not be run: {problem}") from None
    lines = done.stdout.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise EngineError(f"{command[0]} is no Python that can be asked for {asked_for}; it said: {last}") from None
    return answer
