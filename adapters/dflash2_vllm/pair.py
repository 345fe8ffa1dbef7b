"""Does this drafter work on that target? Asked before vLLM is started, of folders."""

from pathlib import Path
from typing import Any

from dflash2_core.checkpoint import open_checkpoint
from dflash2_core.compatibility import TargetFacts, misfits
from dflash2_core.config import DrafterConfig
from dflash2_core.config.documents import read_object
from dflash2_core.config.drafter import is_drafter
from dflash2_core.config.reading import placed
from dflash2_core.errors import CheckpointError, CompatibilityError
from dflash2_vllm.checks import layer_problems


def open_target(path: Path) -> dict[str, Any]:
    """config.json of a target's folder; CheckpointError or CompatibilityError where vLLM could not serve it."""
    if not path.is_dir():
        raise CompatibilityError(f"{placed(path)} is no folder: vLLM serves a folder of a Hugging Face checkpoint")
    document = read_object(path / "config.json", CheckpointError)
    if is_drafter(document):
        raise CompatibilityError(f"{placed(path)} is a drafter's folder: expected the target first, then its drafter")
    return document


def check_pair(target: Path, drafter: Path) -> DrafterConfig:
    """What the drafter is, every weight looked at.

    Raises ConfigError or CheckpointError where it is not sound, CompatibilityError with every misfit.
    """
    document = open_target(target)
    config = open_checkpoint(drafter).require_finite().config
    problems = [*misfits(config, TargetFacts.of_config(document, folder=target)), *layer_problems(config)]
    if problems:
        raise CompatibilityError("\n- ".join([f"{placed(drafter)} does not work on {placed(target)} in vLLM:", *problems]))
    return config
