"""oMLX: an entry of its model_settings.json."""

import json
from pathlib import PurePath

from dflash2_core.deployment.recipe import Pair, Recipe, block_in_words

CHECKED = "oMLX's omlx/model_settings.py (settings version 1) and pull request 2840, merged, which brings DFlash 2"
NOTES = (
    "merge it into model_settings.json of oMLX, under the name that it gives the target; macOS on Apple silicon",
    "dflash_draft_sink_size is 0: before that pull request it was 64 by default, which shows the drafter more than its window",
    "mtp_enabled has to be false: oMLX takes one way of speculating a model",
)


def omlx(pair: Pair) -> Recipe:
    """dflash_block_size counts the rows of a block. Its window is the checkpoint's where nothing is said."""
    checkpoint = pair.checkpoint(needs_zlab="oMLX")
    settings = {
        "dflash_enabled": True,
        "dflash_draft_model": pair.place,
        "dflash_block_size": checkpoint.config.block_size,
        "dflash_draft_sink_size": 0,
        "mtp_enabled": False,
    }
    return Recipe(
        engine="omlx",
        kind="file",
        file="model_settings.json",
        text=json.dumps({"version": 1, "models": {PurePath(pair.target).name: settings}}, indent=2, ensure_ascii=False),
        counts=block_in_words(checkpoint, "dflash_block_size", checkpoint.config.block_size),
        checked=CHECKED,
        run=False,
        notes=NOTES,
    )
