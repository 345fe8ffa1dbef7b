"""From a target's logits to accepted tokens: parameters, the distribution p, random draws, lossless verification."""

from dflash2_core.sampling.constraints import AfterToken, Grammar
from dflash2_core.sampling.distribution import target_distribution
from dflash2_core.sampling.params import Constraint, LogitsProcessor, SamplingParams
from dflash2_core.sampling.processing import processed_logits
from dflash2_core.sampling.streams import Purpose, RandomStreams
from dflash2_core.sampling.verification import BROKEN, draw, verify_greedy, verify_sampled

__all__ = [
    "BROKEN",
    "AfterToken",
    "Constraint",
    "Grammar",
    "LogitsProcessor",
    "Purpose",
    "RandomStreams",
    "SamplingParams",
    "draw",
    "processed_logits",
    "target_distribution",
    "verify_greedy",
    "verify_sampled",
]
