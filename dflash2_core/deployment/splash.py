"""Splash: its own pairing of target and draft, overridden by a folder."""

import shlex

import torch

from dflash2_core.config.reading import placed
from dflash2_core.deployment.recipe import Pair, Recipe
from dflash2_core.errors import CompatibilityError

CHECKED = "Splash's DEVELOPMENT.md (serve, --draft-model), commit 00dfa3e"
NOTES = (
    "macOS on Apple silicon; Splash takes a draft only where its config states what Splash knows of that target's family, and "
    "asks for one file or shards in bfloat16",
    "the manifest that Splash keeps of an installation, with sizes and hashes, it writes itself: none is to be given. For the "
    "drafter's own files dflash2 manifest writes one",
)


def splash(pair: Pair) -> Recipe:
    """It drafts whole blocks, by the drafter's config: no count is given."""
    checkpoint = pair.checkpoint(needs_zlab="Splash")
    if others := set(checkpoint.dtypes.values()) - {torch.bfloat16}:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in others))
        raise CompatibilityError(
            f"{placed(pair.drafter)} holds weights in {names} and Splash asks for bfloat16: "
            f"dflash2 convert {placed(pair.drafter)} OUT --to zlab --dtype bfloat16"
        )
    config = checkpoint.config
    return Recipe(
        engine="splash",
        kind="command",
        text=shlex.join(("splash", "serve", "--model", pair.target, "--draft-model", pair.place)),
        counts=f"block {config.block_size} = {config.num_drafts} drafts: as the drafter's config says, nothing is given",
        checked=CHECKED,
        run=False,
        notes=NOTES,
    )
