"""What a recipe is, and what of a pair goes into one."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash2_core.checkpoint import Checkpoint, open_checkpoint
from dflash2_core.config.reading import placed
from dflash2_core.errors import CompatibilityError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """text, exactly as it is run or written.

    kind     "command" or "file"
    file     the name that a file should have; None for a command
    counts   the block's length in the engine's own words
    checked  the version, or the source, that it was written against
    run      whether this project's tests run it; False: it was only read
    notes    what a user should know, as sentences
    """

    engine: str
    kind: str
    text: str
    counts: str
    checked: str
    run: bool
    notes: tuple[str, ...] = ()
    file: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self) | {"notes": list(self.notes)}


@dataclass(frozen=True)
class Pair:
    """target: as the engine takes it, a path or a name; drafter: its folder, or for llama.cpp its GGUF; cache: folder of what
    is made for the engine, None for the user's. A target that is here is called by its place in full, as the drafter is."""

    target: str
    drafter: Path
    cache: Path | None = None

    def __post_init__(self) -> None:
        if Path(self.target).exists():
            object.__setattr__(self, "target", str(Path(self.target).resolve()))

    def checkpoint(self, *, needs_zlab: str | None = None) -> Checkpoint:
        """The drafter's folder, opened; needs_zlab: the engine that reads no other layout. CompatibilityError for another."""
        found = open_checkpoint(self.drafter)
        if needs_zlab is not None and found.layout != "zlab":
            raise CompatibilityError(
                f"{placed(self.drafter)} is in the layout {found.layout}, of which {needs_zlab} reads nothing: "
                f"dflash2 convert {placed(self.drafter)} OUT --to zlab"
            )
        return found

    @property
    def place(self) -> str:
        """The drafter's place in full; CompatibilityError for a name that no file could hold in one line."""
        text = str(self.drafter.resolve())
        if not text.isprintable() or not self.target.isprintable():
            raise CompatibilityError(f"{text!r} and {self.target!r} have to be printable: rename them")
        return text


Write = Callable[[Pair], Recipe]


def block_in_words(checkpoint: Checkpoint, name: str, count: int) -> str:
    """`block 8 = 7 drafts: NAME COUNT`"""
    config = checkpoint.config
    return f"block {config.block_size} = {config.num_drafts} drafts: {name} {count}"
