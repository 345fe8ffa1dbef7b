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
    problems = [*misfits(config, _facts(document, target)), *layer_problems(config)]
    if problems:
        raise CompatibilityError("\n- ".join([f"{placed(drafter)} does not work on {placed(target)} in vLLM:", *problems]))
    return config


def _facts(document: dict[str, Any], path: Path) -> TargetFacts:
    text = document.get("text_config", document)
    sizes = [text.get(key) for key in ("hidden_size", "vocab_size", "num_hidden_layers")]
    if not all(isinstance(size, int) for size in sizes):
        raise CheckpointError(f"{placed(path)} names no hidden_size, vocab_size or num_hidden_layers in its config.json")
    ends = text.get("eos_token_id")
    named = {f"end-of-sequence ({token})": token for token in (ends if isinstance(ends, list) else [ends])}
    named["padding"] = text.get("pad_token_id")
    hidden, vocabulary, layers = sizes
    special = {name: token for name, token in named.items() if isinstance(token, int)}
    return TargetFacts(hidden_size=hidden, vocab_size=vocabulary, num_layers=layers, special_ids=special)
