"""The grouped dynamic convolution around both sublayers of a DFlash 2 layer (reference, section 4)."""

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
    B, L, H = x.shape
    taps, groups = delta.shape[-2:]
    kernel = base.view(taps, groups, H // groups) + delta.unsqueeze(-1)  # [B, L, taps, groups, g]
    rows = x.view(B, L, groups, H // groups)
    y = kernel[:, :, 0] * rows
    for tau in range(1, min(taps, L)):
        y[:, tau:] += kernel[:, tau:, tau] * rows[:, :-tau]
    return y.view(B, L, H)


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

    def before(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """u [B, L, H] -> (u' [B, L, H] for the sublayer, delta [B, L, taps, H / g] for `after`)."""
        delta = self.kernel_projection(u).unflatten(-1, (2, self.kernel_size, self.groups))
        return grouped_dynamic_conv(u, self.base_kernel[0], delta[..., 0, :, :]), delta[..., 1, :, :]

    def after(self, o: Tensor, delta: Tensor) -> Tensor:
        """The sublayer's output o [B, L, H] -> o' [B, L, H]."""
        return grouped_dynamic_conv(o, self.base_kernel[1], delta)
