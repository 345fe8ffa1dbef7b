"""`dflash2 recipe`: the exact command or file with which an engine runs a pair."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dflash2_core.cli.opening import as_manifested
from dflash2_core.deployment import RECIPES, Pair
from dflash2_core.engines import meant
from dflash2_core.errors import EngineError


def recipe(
    engine: Annotated[str, typer.Argument(help=f"One of {', '.join(RECIPES)}.")],
    target: Annotated[str, typer.Option(help="The target as the engine takes it: a path, or a name.")],
    drafter: Annotated[Path, typer.Option(help="The drafter: its folder, for llama-cpp its GGUF too.")],
    cache: Annotated[
        Path | None, typer.Option(help="Folder of the GGUF that llama-cpp is given. Default: the user's cache.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Print the command or the file that makes an engine draft with this drafter, and nothing else, on standard output.

    Nothing is written, but for the drafter's GGUF where llama.cpp is here and was given its folder.

    On standard error: the block in the engine's words, what the recipe was checked against, whether this project runs it.
    """
    if engine not in RECIPES:
        raise EngineError(f"there is no recipe for {engine!r}{meant(engine, RECIPES)}: expected one of {', '.join(RECIPES)}")
    found = RECIPES[engine](Pair(target, as_manifested(drafter), cache))
    if as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
        return
    print(found.text)
    how = "run by this project's tests" if found.run else "only read, not run by this project"
    said = [found.counts, f"checked against {found.checked}; {how}", *found.notes]
    if found.file is not None:
        said.insert(0, f"the file {found.file}")
    for sentence in said:
        print(f"note: {sentence}", file=sys.stderr)
