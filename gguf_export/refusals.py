"""What llama.cpp cannot run, or would run as something else: said before anything is written.

Most of what can be wrong with a drafter the core refuses when it opens the checkpoint. Here stands what only llama.cpp minds,
from its `models/dflash.cpp`, `llama-hparams.h` and `common/speculative.cpp`: there most of it aborts, or drafts badly
without a message.
"""

from collections.abc import Collection, Sequence

from gguf import GGMLQuantizationType

from dflash2_core.checkpoint import Checkpoint
from dflash2_core.checkpoint.examination import look
from dflash2_core.compatibility import misfits
from dflash2_core.config import DrafterConfig
from dflash2_core.config.reading import placed
from dflash2_core.drafter.model import OWN_EMBEDDING, OWN_HEAD, OWN_MASK
from dflash2_core.errors import CompatibilityError
from gguf_export.outtypes import largest_finite
from gguf_export.rope import rope_problems
from gguf_export.target import Target


class NotExportableError(CompatibilityError):
    """A CompatibilityError that carries each reason as a sentence of its own."""

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        head = f"{where} cannot be exported: " if len(problems) == 1 else f"{where} cannot be exported:\n- "
        super().__init__(head + "\n- ".join(problems))


def refuse_unfit(checkpoint: Checkpoint, target: Target) -> None:
    """Raises NotExportableError with every reason why this drafter on this target is nothing for llama.cpp."""
    own = set(checkpoint.tensor_names)
    problems = [
        *config_problems(checkpoint.config),
        *own_tensor_problems(own),
        *_misfits(checkpoint.config, target, own),
    ]
    if problems:
        raise NotExportableError(placed(checkpoint.path), problems)


def config_problems(config: DrafterConfig) -> list[str]:
    """What llama.cpp has no way to be told, or cannot compute, of a drafter that is sound in itself."""
    problems = rope_problems(config)
    if len(set(config.layer_causal)) > 1:
        kinds = ", ".join("causal" if causal else "not causal" for causal in config.layer_causal)
        problems.append(f"its layers differ in causality ({kinds}) and a GGUF has one attention.causal for all of them")
    narrow = [window for window in config.layer_windows if window is not None and window < config.block_size]
    if narrow and not any(config.layer_causal):
        problems.append(
            f"its window of {narrow[0]} is shorter than its block of {config.block_size} and it is not causal: llama.cpp "
            "applies a window backwards only, so that a row would see more of its block than the drafter was trained to"
        )
    top_k = config.selector_top_k
    if top_k is not None and config.hidden_size < top_k * (top_k + 1):
        problems.append(
            f"selector_top_k is {top_k} and hidden_size is {config.hidden_size}: llama.cpp packs the candidates' scores "
            f"into a row of hidden_size, which has to be at least top_k * (top_k + 1) = {top_k * (top_k + 1)}"
        )
    return problems


def own_tensor_problems(own: Collection[str]) -> list[str]:
    """Of the optional tensors that a checkpoint brings (canonical names): what llama.cpp would make of them instead."""
    if OWN_MASK in own and not {OWN_EMBEDDING, OWN_HEAD} <= set(own):
        return [
            f"it has a mask row of its own ({OWN_MASK}), which a GGUF can hold only inside an embedding of its own, beside a "
            f"head of its own: store {OWN_EMBEDDING} and {OWN_HEAD} (the target's) in its checkpoint"
        ]
    if OWN_EMBEDDING in own and OWN_HEAD not in own:
        return [
            f"it has its own {OWN_EMBEDDING} but no {OWN_HEAD}: llama.cpp would take the embedding for the head instead of "
            f"the target's; store the target's {OWN_HEAD} in its checkpoint too, or leave the embedding out"
        ]
    return []


def _misfits(config: DrafterConfig, target: Target, own: Collection[str]) -> list[str]:
    found = [f"it does not fit the target {placed(target.path)}: {misfit}" for misfit in misfits(config, target.facts, own=own)]
    if config.hidden_size != target.facts.hidden_size and not any("hidden size" in misfit for misfit in found):
        found.append(
            f"its hidden_size is {config.hidden_size} and the target's {target.facts.hidden_size}: llama.cpp takes one "
            "width for both"
        )
    return found


def weight_problem(checkpoint: Checkpoint, name: str, kind: GGMLQuantizationType) -> str | None:
    """Why the weights of one tensor cannot be stored as `kind`: reads all of them."""
    weights = look(checkpoint.tensor(name))
    if weights.not_finite:
        return f"{name} holds {weights.not_finite:,} values that are no finite numbers: nothing would be accepted, silently"
    if weights.largest > largest_finite(kind):
        return f"{name} holds {weights.largest:.3g}, above what {kind.name} can hold: choose the outtype bf16 or f32"
    return None
