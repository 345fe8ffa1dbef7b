"""The drafter's math: convolution, KV-injected attention, candidate selector, and the model around them."""

from dflash2_core.drafter.context import DrafterContext
from dflash2_core.drafter.convolution import grouped_dynamic_conv
from dflash2_core.drafter.loading import load_drafter, save_drafter
from dflash2_core.drafter.model import Drafter
from dflash2_core.drafter.selector import best_candidates, walk

__all__ = [
    "Drafter",
    "DrafterContext",
    "best_candidates",
    "grouped_dynamic_conv",
    "load_drafter",
    "save_drafter",
    "walk",
]
