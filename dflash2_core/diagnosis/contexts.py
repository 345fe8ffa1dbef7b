"""How far into a text the drafter can follow its target."""

from collections.abc import Iterator

from dflash2_core.config import DrafterConfig
from dflash2_core.diagnosis.facts import DrafterSide, TargetSide
from dflash2_core.diagnosis.finding import Finding


def context_findings(drafter: DrafterSide, target: TargetSide | None, *, context: int | None = None) -> Iterator[Finding]:
    """context: positions of one request, where the user said how many."""
    config = drafter.config
    if config is None:
        return
    needed = context or (target.context_length if target is not None else None)
    if needed is not None and config.max_position_embeddings < needed:
        whose = "asked for" if context else "the target's"
        yield Finding(
            "warning",
            "context",
            f"the drafter has {config.max_position_embeddings:,} positions and {needed:,} are {whose}: behind its last one "
            "nothing is drafted",
            f"serve with a context of {config.max_position_embeddings}, or live with plain decoding there",
        )
    if target is not None and target.context_length is not None and context is not None and context > target.context_length:
        reason = f"{context:,} positions are asked for and the target has {target.context_length:,}"
        yield Finding("warning", "context", reason, f"ask for {target.context_length}")
    yield from _windows(config)


def _windows(config: DrafterConfig) -> Iterator[Finding]:
    whole = sum(window is None for window in config.layer_windows)
    if whole:
        layers = config.num_hidden_layers
        yield Finding(
            "note",
            "windows",
            f"{whole} of {layers} layers of the drafter see the whole context: their keys and values grow with the text",
            "count them in, or take a drafter whose layers all slide",
        )
    short = min((window for window in config.layer_windows if window is not None), default=None)
    if short is not None and short < config.block_size:
        yield Finding(
            "warning",
            "windows",
            f"a window of {short} is shorter than a block of {config.block_size}: rows of a block do not all see their anchor",
            "ask whoever made it; llama.cpp refuses it where it is not causal",
        )
