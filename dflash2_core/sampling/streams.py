"""Random draws as a pure function of (seed, position, purpose): nothing to carry or rewind, the same on every device.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC'11). The key is the
request's seed; the counter is the absolute position and the purpose. A draw that a cycle asked for but did not use
(past the first rejection) may be asked for again by the next: what was emitted never depended on it.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = TypeVar("Words", npt.NDArray[np.int64], Tensor)

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # these two and the number of rounds as in the paper and in Random123
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


class Purpose(StrEnum):
    """What a draw is for. Two purposes never share a draw."""

    DRAFT = "draft"
    ACCEPT = "accept"
    RECOVER = "recover"
    BONUS = "bonus"


_CODES = {purpose: code for code, purpose in enumerate(Purpose)}


class RandomStreams:
    """The draws of a batch of requests.

    seeds   an int (all rows alike), or one seed a row: a sequence of ints or [B] int64; any 64 bits
    """

    def __init__(self, seeds: int | Sequence[int] | Tensor) -> None:
        if isinstance(seeds, int):
            seeds = [seeds]
        if not isinstance(seeds, Tensor):
            seeds = torch.tensor([(seed + 2**63) % 2**64 - 2**63 for seed in seeds])
        self.seeds = seeds.to(torch.int64)

    def uniform(self, positions: Tensor, purpose: Purpose | str) -> Tensor:
        """positions [B] or [B, L] int64, absolute -> float64 in [0, 1) of the same shape, on the same device.

        Elementwise a function of (seed, position, purpose): batch, order and device change nothing. On an accelerator
        the host does not wait.
        """
        code = _CODES[Purpose(purpose)]
        seeds = self.seeds.to(positions.device)
        seeds = seeds.view(-1, *[1] * (positions.dim() - 1))
        if positions.device.type == "cpu":  # the same arithmetic; numpy costs a tenth of torch on arrays this small
            return torch.from_numpy(_mantissa(seeds.numpy(), positions.numpy(), code) * 2.0**-53)
        return _mantissa(seeds, positions, code).double() * 2.0**-53


def _mantissa(seeds: Words, positions: Words, code: int) -> Words:
    """53 bits of two words: over 2**53 every value is exact in float64, and the largest is 1 - 2**-53."""
    zero = positions * 0
    counter = (positions & _LOW, (positions >> 32) & _LOW, zero + code, zero)
    words = philox4x32(counter, (seeds & _LOW, (seeds >> 32) & _LOW))
    return ((words[0] >> 5) << 26) | (words[1] >> 6)


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 on 32-bit words held in int64, numpy or torch alike.

    A product of two words fills 64 bits and wraps into the sign; shift and mask read its halves back as unsigned. Only
    the factors must be clean words, so the other halves and the key are masked where they end up in one.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0 = ((product1 >> 32) ^ c1 ^ k0) & _LOW
        c1 = product1
        c2 = ((product0 >> 32) ^ c3 ^ k1) & _LOW
        c3 = product0
        k0 = k0 + _WEYL[0]
        k1 = k1 + _WEYL[1]
    return c0, c1 & _LOW, c2, c3 & _LOW
