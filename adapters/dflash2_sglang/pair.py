"""Does this drafter work on that target in SGLang? Asked before anything is loaded, here and in `dflash2 serve`."""

from collections.abc import Iterator
from pathlib import Path

from dflash2_core.checkpoint import Checkpoint, open_checkpoint
from dflash2_core.compatibility import TargetFacts, misfits
from dflash2_core.config import DrafterConfig
from dflash2_core.config.documents import read_object
from dflash2_core.config.reading import placed
from dflash2_core.errors import CheckpointError, CompatibilityError


def local_folder(path: str | Path) -> Path:
    """The folder of a model; of one that is named as on the Hugging Face Hub, its snapshot, downloaded if need be."""
    if Path(path).is_dir():
        return Path(path)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(path)))
    except (ImportError, OSError, ValueError):
        raise CheckpointError(f"{path} is no folder here and was not found on the Hugging Face Hub") from None


def check_pair(target: str | Path, drafter: str | Path) -> Checkpoint:
    """The drafter's checkpoint, all of it read and found to fit; ConfigError, CheckpointError or CompatibilityError if not."""
    checkpoint = open_checkpoint(local_folder(drafter)).require_finite()
    folder = local_folder(target)
    facts = TargetFacts.of_config(read_object(folder / "config.json", CheckpointError), folder=folder)
    found = [*misfits(checkpoint.config, facts), *_limits_of_sglang(checkpoint)]
    if found:
        raise CompatibilityError(f"the drafter {placed(checkpoint.path)} does not work on this target: " + "; ".join(found))
    return checkpoint


def num_draft_tokens(asked: int | None, checkpoint: Checkpoint) -> int:
    """SGLang's `--speculative-num-draft-tokens`, which counts the anchor: a block of 8 rows is 8 here and drafts 7 tokens."""
    block = checkpoint.config.block_size
    if asked is None:
        return block
    if not 2 <= asked <= block:
        raise CompatibilityError(
            f"--speculative-num-draft-tokens is {asked}: SGLang counts the rows of a block, the last committed token included, "
            f"so that 8 means 7 drafts; this drafter's blocks have {block} rows ({block - 1} drafts): give 2 to {block}"
        )
    return asked


def reach(config: DrafterConfig, context: int) -> Iterator[str]:
    """How far the drafter sees and goes in a context of so many positions, as sentences; none where both is all of it."""
    windows = [window for window in config.layer_windows if window is not None and window < context]
    if windows:
        seen, layers = " or ".join(map(str, sorted(set(windows)))), len(config.layer_windows)
        yield (
            f"{len(windows)} of the drafter's {layers} layers see a window of the last {seen} positions of a context of "
            f"{context}, as its config says"
        )
    if config.max_position_embeddings < context:
        yield (
            f"the drafter's positions end at {config.max_position_embeddings}, the context at {context}: texts go on from "
            "there without drafts"
        )


def _limits_of_sglang(checkpoint: Checkpoint) -> Iterator[str]:
    """What the core can and SGLang's draft model cannot."""
    if checkpoint.layout != "zlab":
        yield (
            f"its config is in the layout {checkpoint.layout}, of which SGLang reads nothing: load it and save it again "
            "(`dflash2_core.load_drafter`, `save_drafter`), which writes the layout zlab"
        )
    own = [name for name in ("embed_tokens.weight", "lm_head.weight", "mask_embedding") if name in checkpoint.tensor_names]
    if own:
        yield f"it brings its own {', '.join(own)}, which SGLang passes over: it takes the target's"
    if checkpoint.config.target_hidden_size != checkpoint.config.hidden_size:
        yield (
            f"its hidden size is {checkpoint.config.hidden_size} and its features' width "
            f"{checkpoint.config.target_hidden_size}: SGLang's draft model has one width for both"
        )
