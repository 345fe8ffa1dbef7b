"""The grouped dynamic convolution around both sublayers of a DFlash 2 layer (reference, section 4)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def grouped_dynamic_conv(x: Tensor, base: Tensor, delta: Tensor) -> Tensor:
    """Mix each row of a block with the rows before it, by kernels that the rows themselves choose.

        y_t[c] = sum_tau (base[tau, c] + delta_t[tau, c // g]) * x_{t - tau}[c]

    Rows before the block's first are zero: a block never sees its context or another block.

    x      [B, L, H] float
    base   [taps, H] float, the same for every row
    delta  [B, L, taps, H / g] float, one value a group of g channels
    Returns [B, L, H]. Any L >= 1 and taps >= 1, L < taps included.
    """
    return _convolve(x, _kernels(base, delta))


def _kernels(base: Tensor, delta: Tensor) -> Sequence[Tensor]:
    """base [N, H] and delta [B, L, N, H / g] -> N kernels [B, L, H]."""
    kernels = base.view(len(base), delta.shape[-1], -1) + delta[..., None]
    return torch.unbind(kernels.flatten(-2), dim=2)


def _convolve(x: Tensor, kernels: Sequence[Tensor]) -> Tensor:
    """x [B, L, H] and a kernel [B, L, H] for each tap -> [B, L, H]"""
    y = kernels[0] * x
    for tau, kernel in enumerate(kernels[1 : x.shape[1]], 1):
        y[:, tau:].addcmul_(kernel[:, tau:], x[:, :-tau])
    return y


class GroupedDynamicConv(nn.Module):
    """The pair of convolutions around one sublayer. Both kernels come from the sublayer's normed input u.

    A new one is the identity (base kernel 1 at the row itself, all else 0), which makes DFlash 2 equal DFlash 1.
    """

    def __init__(self, hidden_size: int, kernel_size: int, group_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.groups = hidden_size // group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, kernel_size, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * kernel_size * self.groups, bias=False)
        nn.init.ones_(self.base_kernel[:, 0])
        nn.init.zeros_(self.kernel_projection.weight)

    def before(self, u: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """u [B, L, H] -> (u' [B, L, H] for the sublayer, the kernels [B, L, H] a tap that `after` takes)."""
        delta = self.kernel_projection(u).view(*u.shape[:-1], -1, self.groups)
        kernels = _kernels(self.base_kernel.flatten(0, 1), delta)
        return _convolve(u, kernels[: self.kernel_size]), kernels[self.kernel_size :]

    def after(self, o: Tensor, kernels: Sequence[Tensor]) -> Tensor:
        """The sublayer's output o [B, L, H] -> o' [B, L, H]."""
        return _convolve(o, kernels)
