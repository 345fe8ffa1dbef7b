"""Speculative decoding of Hugging Face models, and the reference for every other engine. Needs the `transformers` extra."""

from dflash2_core.transformers_engine.engine import LowAcceptanceWarning, TransformersEngine
from dflash2_core.transformers_engine.requests import Chunk, Completion
from dflash2_core.transformers_engine.target import Target

__all__ = ["Chunk", "Completion", "LowAcceptanceWarning", "Target", "TransformersEngine"]
