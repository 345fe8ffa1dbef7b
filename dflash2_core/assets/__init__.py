"""What comes with the package so that everything runs offline: a small target and its drafter, trained by this project."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash2_core.errors import CheckpointError

DEMO_PROMPTS = (
    "def read_lines(path):\n",
    "The following example shows how to",
    "What is 17 + 25?\n",
)


@dataclass(frozen=True)
class Pair:
    """Folders of a target and of the drafter made for it."""

    target: Path
    drafter: Path


def tiny_pair() -> Pair:
    """The embedded pair. Raises CheckpointError if this installation lacks it."""
    root = Path(__file__).parent / "tiny_pair"
    if not (root / "target" / "config.json").is_file():
        raise CheckpointError(f"this installation has no embedded pair at {root}: install dflash2 again, or `make tiny-pair`")
    return Pair(target=root / "target", drafter=root / "drafter")


def is_embedded_target(path: Path) -> bool:
    """Whether `path` is the folder of the embedded pair's target, by whatever way it is reached."""
    return path.is_dir() and path.resolve() == tiny_pair().target.resolve()


def held_out_prompts() -> list[dict[str, Any]]:
    """Prompts of text that the pair was not trained on: [{"domain": ..., "text": ...}]."""
    prompts: list[dict[str, Any]] = json.loads((Path(__file__).parent / "tiny_pair" / "prompts.json").read_text())
    return prompts
