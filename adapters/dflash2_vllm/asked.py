"""What a user asked for: `--speculative-config`, checked and completed before vLLM makes an object of it.

Afterwards an option that was left out can no longer be told from one that was given its default.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

from dflash2_core.errors import CompatibilityError, Dflash2Error
from dflash2_vllm.checks import too_many
from dflash2_vllm.drafters import claims_dflash2, document_of, read_drafter

logger = logging.getLogger("vllm.dflash2")
FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""Attributes of EngineArgs -> the options that they are short for."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What to add to the options. off: the user turned drafting off; notes: what was decided, as sentences."""

    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    off: bool = False


def options_of(arguments: Any) -> dict[str, Any]:
    """All that EngineArgs says of speculation, under vLLM's names."""
    given = {str(key).replace("-", "_"): value for key, value in (arguments.speculative_config or {}).items()}
    flags = {key: getattr(arguments, name, None) for name, key in FLAGS.items()}
    return given | {key: value for key, value in flags.items() if value is not None}


def complete(options: dict[str, Any]) -> Completion | None:
    """None: no DFlash 2 is asked for. Raises CompatibilityError, ConfigError or CheckpointError in sentences."""
    model, revision = options.get("model"), options.get("revision")
    if not isinstance(model, str) or options.get("method", "dflash") != "dflash":
        return None
    if not claims_dflash2(document_of(model, revision)):
        return None
    config = read_drafter(model, revision)
    added: dict[str, Any] = {}
    notes = []
    if "method" not in options:
        added["method"] = "dflash"
        notes.append(f"{model} is a DFlash 2 drafter: the method is dflash")
    asked = options.get("num_speculative_tokens")
    if asked == 0:
        return Completion(off=True, notes=("num_speculative_tokens is 0: drafting is off, the target decodes plainly",))
    if asked is None:
        added["num_speculative_tokens"] = config.num_drafts
        notes.append(f"{config.num_drafts} drafts a block, from the drafter's block size {config.block_size}")
    elif asked > config.num_drafts:
        raise CompatibilityError(f"num_speculative_tokens asks for {too_many(asked, config)}; leave it out, or give less")
    if options.get("draft_sample_method") is None:
        added["draft_sample_method"] = "probabilistic"
        notes.append("draft_sample_method was left out: probabilistic, drafts are sampled and their q goes to the verification")
    return Completion(options=added, notes=tuple(notes))


def completed(arguments: Any) -> bool:
    """Completes EngineArgs in place; False: drafting is off. Raises ValueError, as vLLM does, for what cannot be run."""
    try:
        found = complete(options_of(arguments))
    except Dflash2Error as problem:
        raise ValueError(f"dflash2: {problem}") from None
    if found is None:
        return True
    for note in found.notes:
        logger.info("dflash2: %s", note)
    if found.off:
        arguments.speculative_config = None
        for name in FLAGS:
            setattr(arguments, name, None)
        return False
    arguments.speculative_config = dict(arguments.speculative_config or {}) | found.options
    return True
