"""Muon (Keller Jordan, 2024): momentum whose update is orthogonalised, for the matrices inside a network's layers.

`torch.optim.Muon` orthogonalises in bfloat16, which a CPU without bfloat16 units emulates some thirty times slower; this
one stays in the parameters' own dtype and takes all matrices of one shape at once.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def orthogonalize(matrices: Tensor) -> Tensor:
    """[N, rows, columns] -> the same shape, singular values brought near 1 by a quintic Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled by sqrt(max(1, rows / columns)); decoupled weight decay."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for (rows, columns), parameters in by_shape.items():
                scale = group["lr"] * math.sqrt(max(1.0, rows / columns))
                updates = orthogonalize(torch.stack([self._momentum(p, group["momentum"]) for p in parameters]))
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        buffer: Tensor = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)
