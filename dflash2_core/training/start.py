"""A new drafter, and parts of it that stay as they began."""

from collections.abc import Collection
from typing import Literal

import torch

from dflash2_core.config import DrafterConfig
from dflash2_core.drafter import Drafter

Part = Literal["selector", "convolution"]
PARTS: dict[str, tuple[str, ...]] = {"selector": ("candidate_selector.",), "convolution": ("attention_conv.", "mlp_conv.")}


def new_drafter(config: DrafterConfig, seed: int) -> Drafter:
    """Random weights, identity convolutions and a zero successor codebook: it drafts exactly as a DFlash 1 with its other
    weights would, and training takes it from there."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Drafter(config)


def freeze(drafter: Drafter, parts: Collection[Part]) -> None:
    """Keep these parts as they are: frozen from the start, the drafter has the rest of DFlash 2 only."""
    names = tuple(name for part in parts for name in PARTS[part])
    for name, parameter in drafter.named_parameters():
        if any(frozen in name for frozen in names):
            parameter.requires_grad_(False)
