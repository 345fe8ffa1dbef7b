"""What speculators 0.9 cannot hold, or would run as something else, beyond what its config has no words for.

The words are the config's own business: see `dflash2_core/config/speculators.py`.
"""

from collections.abc import Iterator

from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import placed
from dflash2_core.conversion.sources import Source
from dflash2_core.errors import CompatibilityError

OWN = {
    # optional tensor -> what that package does with it
    "embed_tokens.weight": "speculators replaces it by the target's when it loads the drafter",
    "lm_head.weight": "speculators replaces it by the target's when it loads the drafter",
    "mask_embedding": "speculators has no place for it and takes the mask token's row of the target's embedding",
}


class NotConvertibleError(CompatibilityError):
    """A CompatibilityError that carries each reason as a sentence of its own."""

    def __init__(self, source: Source, layout: str, problems: list[str]) -> None:
        self.problems = tuple(problems)
        head = f"{placed(source.path)} cannot be converted to {layout}:"
        super().__init__(f"{head} {problems[0]}" if len(problems) == 1 else "\n- ".join([head, *problems]))


def refuse_for_speculators(source: Source) -> None:
    """Raises NotConvertibleError with every reason why speculators 0.9 would load another drafter than this one, or none."""
    own = [f"it brings its own {name}: {reason}" for name, reason in OWN.items() if name in source.tensors]
    if problems := [*own, *_config_problems(source.config)]:
        raise NotConvertibleError(source, "speculators", problems)


def _config_problems(config: DrafterConfig) -> Iterator[str]:
    kernel = config.conv_kernel_size
    if kernel is not None and kernel > config.block_size:
        yield (
            f"conv_kernel_size is {kernel} and block_size is {config.block_size}: speculators takes no kernel that is longer "
            "than a block"
        )
    if config.pad_token_id is not None and config.pad_token_id >= config.vocab_size:
        yield (
            f"pad_token_id is {config.pad_token_id} and vocab_size is {config.vocab_size}: speculators builds an embedding "
            "around the padding token and takes none outside of it"
        )
