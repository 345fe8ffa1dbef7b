"""Does this drafter fit that target? Asked by every engine at load, before the first token."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import placed
from dflash2_core.errors import CheckpointError, CompatibilityError


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """What a drafter needs to know of its target.

    hidden_size     H_target
    vocab_size      ids that exist; a padded embedding or head may have more rows
    num_layers      decoder layers
    table_size      width of the embedding's rows; None: hidden_size
    special_ids     name -> id of the tokens that a mask token must not be
    """

    hidden_size: int
    vocab_size: int
    num_layers: int
    special_ids: dict[str, int] | None = None
    table_size: int | None = None

    @classmethod
    def of_config(cls, document: Mapping[str, Any], *, folder: Path) -> Self:
        """Of the config.json of a target's folder, or of the text model in it; CheckpointError names missing sizes."""
        text = document.get("text_config", document)
        text = text if isinstance(text, Mapping) else {}
        sizes = {name: text.get(name) for name in ("hidden_size", "vocab_size", "num_hidden_layers")}
        missing = [name for name, size in sizes.items() if not isinstance(size, int)]
        if missing:
            raise CheckpointError(f"{placed(folder)}: its config.json names no {', '.join(missing)}")
        return cls(
            hidden_size=text["hidden_size"],
            vocab_size=text["vocab_size"],
            num_layers=text["num_hidden_layers"],
            special_ids=special_ids(text.get("eos_token_id"), text.get("pad_token_id")),
        )


def special_ids(ends: object, padding: object) -> dict[str, int]:
    """What a mask token must not be, for `TargetFacts`. ends: an id, several, or none; padding: an id, or none."""
    many = ends if isinstance(ends, list | tuple | set | frozenset) else [ends]
    found = {f"end-of-sequence ({token})": token for token in many} | {"padding": padding}
    return {name: token for name, token in found.items() if isinstance(token, int)}


def require_fit(config: DrafterConfig, target: TargetFacts, *, own: Collection[str] = ()) -> None:
    """Raises CompatibilityError with every misfit, each with the drafter's number and the target's.

    own  the optional tensors of the drafter's checkpoint: what it brings it does not borrow
    """
    found = misfits(config, target, own=own)
    if found:
        raise CompatibilityError("the drafter does not fit this target: " + "; ".join(found))


def misfits(config: DrafterConfig, target: TargetFacts, *, own: Collection[str] = ()) -> list[str]:
    """Every reason why the drafter cannot work on this target, as clauses; empty if it fits."""
    found = []
    if config.target_hidden_size != target.hidden_size:
        found.append(f"it was trained on features of width {config.target_hidden_size}, the target's are {target.hidden_size}")
    borrows = {"embed_tokens.weight", "lm_head.weight"} - set(own)
    tables = target.table_size or target.hidden_size
    if borrows and config.hidden_size != tables:
        found.append(
            f"its hidden size is {config.hidden_size} and it borrows the target's embedding or head, whose width is {tables}"
        )
    if config.vocab_size != target.vocab_size:
        found.append(f"its vocabulary has {config.vocab_size} ids, the target's {target.vocab_size}")
    if config.num_target_layers is not None and config.num_target_layers != target.num_layers:
        found.append(f"it was trained on a target of {config.num_target_layers} layers, this one has {target.num_layers}")
    found += _tap_misfits(config, target)
    if config.mask_token_id >= target.vocab_size:
        found.append(f"its mask token is {config.mask_token_id}, the target's ids are 0..{target.vocab_size - 1}")
    for name, token in (target.special_ids or {}).items():
        if token == config.mask_token_id:
            found.append(f"its mask token {config.mask_token_id} is the target's {name} token")
    return found


def _tap_misfits(config: DrafterConfig, target: TargetFacts) -> list[str]:
    last = target.num_layers - 1
    beyond = [tap for tap in config.target_layer_ids if tap > last]
    if beyond:
        return [f"it taps layer {beyond[0]}, the target's layers are 0..{last}"]
    if last in config.target_layer_ids:
        return [f"it taps layer {last}, the target's last, whose output engines take before or after the final norm"]
    return []
