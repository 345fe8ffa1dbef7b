"""ollama: a Modelfile."""

from dflash2_core.deployment.recipe import Pair, Recipe, block_in_words

CHECKED = "ollama's parser/parser.go (FROM, DRAFT, PARAMETER) and pull request 17865, which brings DFlash 2 to its MLX runner"
NOTES = (
    "create it with: ollama create NAME -f Modelfile (Apple silicon; pull request 17865 was open when it was read)",
    "draft_num_predict is always said: by ollama's reference it is 4 for a drafter of its own, and a user of that pull request "
    "found 0, which loads the drafter and drafts nothing, without a message",
)


def ollama(pair: Pair) -> Recipe:
    """draft_num_predict counts drafts."""
    checkpoint = pair.checkpoint(needs_zlab="ollama")
    drafts = checkpoint.config.num_drafts
    return Recipe(
        engine="ollama",
        kind="file",
        file="Modelfile",
        text="\n".join((f"FROM {pair.target}", f"DRAFT {pair.place}", f"PARAMETER draft_num_predict {drafts}")),
        counts=block_in_words(checkpoint, "draft_num_predict", drafts),
        checked=CHECKED,
        run=False,
        notes=NOTES,
    )
