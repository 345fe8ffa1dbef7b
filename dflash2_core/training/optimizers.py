"""AdamW as the public recipes have it, or Muon for the matrices and AdamW for the rest; one schedule for both."""

import math
from typing import Literal

import torch
from torch import nn

from dflash2_core.training.muon import Muon

Kind = Literal["adamw", "muon"]
MUON_LR_PER_ADAMW_LR = 10.0  # Muon's steps have a spectral norm, AdamW's an absolute value a weight


def make_optimizers(module: nn.Module, kind: Kind, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Over what requires a gradient. The codebooks are tables of ids rather than maps, so AdamW's in either case."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if kind == "adamw":
        return [torch.optim.AdamW([p for _, p in named], lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)]
    is_map = {name: p.ndim == 2 and "codebook" not in name for name, p in named}
    rest = [p for name, p in named if not is_map[name]]
    return [
        Muon([p for name, p in named if is_map[name]], lr=learning_rate * MUON_LR_PER_ADAMW_LR),
        torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def schedule(progress: float, warmup: float) -> float:
    """The factor on every learning rate at `progress` 0 .. 1 of the run: linear warm-up, then a cosine to zero."""
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup) / (1 - warmup))))


def set_learning_rates(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Scale each group's rate from the one it began with."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = factor * group.setdefault("initial_lr", group["lr"])
