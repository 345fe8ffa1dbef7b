"""DFlash 2: the drafter's math, lossless verification, a Transformers engine, and how drafters are made.

Everything but `TransformersEngine`, `Completion` and `Chunk` works without the `transformers` extra.
"""

from typing import TYPE_CHECKING, Any

from dflash2_core import errors
from dflash2_core.acceptance import AcceptanceStats
from dflash2_core.config import DrafterConfig
from dflash2_core.drafter import Drafter, grouped_dynamic_conv, load_drafter, save_drafter, walk
from dflash2_core.proposal import Proposal, Verdict
from dflash2_core.sampling import (
    RandomStreams,
    SamplingParams,
    target_distribution,
    verify_greedy,
    verify_sampled,
)

if TYPE_CHECKING:
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

_NEEDS_TRANSFORMERS = {"Chunk", "Completion", "TransformersEngine"}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TRANSFORMERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from dflash2_core import transformers_engine
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ImportError(f"{name} needs the transformers extra: pip install 'dflash2[transformers]'") from error
    return getattr(transformers_engine, name)
