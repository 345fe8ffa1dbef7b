"""DFlash 2: the drafter's math, lossless verification, a Transformers engine, and how drafters are made.

Everything but `TransformersEngine`, `Completion` and `Chunk` works without the `transformers` extra. Each name is imported when
it is first asked for, so that what needs no tensors does not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash2_core import errors
    from dflash2_core.acceptance import AcceptanceStats
    from dflash2_core.config import DrafterConfig
    from dflash2_core.drafter import Drafter, grouped_dynamic_conv, load_drafter, save_drafter, walk
    from dflash2_core.proposal import Proposal, Verdict
    from dflash2_core.sampling import RandomStreams, SamplingParams, target_distribution, verify_greedy, verify_sampled
    from dflash2_core.transformers_engine import Chunk, Completion, TransformersEngine

__version__ = "0.1.0"

__all__ = [
    "AcceptanceStats",
    "Chunk",
    "Completion",
    "Drafter",
    "DrafterConfig",
    "Proposal",
    "RandomStreams",
    "SamplingParams",
    "TransformersEngine",
    "Verdict",
    "errors",
    "grouped_dynamic_conv",
    "load_drafter",
    "save_drafter",
    "target_distribution",
    "verify_greedy",
    "verify_sampled",
    "walk",
]

_NAMES_OF = {
    "acceptance": ("AcceptanceStats",),
    "config": ("DrafterConfig",),
    "drafter": ("Drafter", "grouped_dynamic_conv", "load_drafter", "save_drafter", "walk"),
    "proposal": ("Proposal", "Verdict"),
    "sampling": ("RandomStreams", "SamplingParams", "target_distribution", "verify_greedy", "verify_sampled"),
    "transformers_engine": ("Chunk", "Completion", "TransformersEngine"),
}
_PART_OF = {name: part for part, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("dflash2_core.errors")
    if name not in _PART_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        part = import_module(f"dflash2_core.{_PART_OF[name]}")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ImportError(f"{name} needs the transformers extra: pip install 'dflash2[transformers]'") from error
    found = globals()[name] = getattr(part, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
