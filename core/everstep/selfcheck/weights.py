"""Numbers that are the same on every machine, to the bit: whole ones, scaled by powers of two.

Normal deviates are not: their mathematics is vectorised in other ways on other processors.
"""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import zlib

import torch
from torch import Tensor

_STEPS = 1024


def whole_numbers(name: str, largest: int, *shape: int) -> Tensor:
    """Whole numbers from -largest to largest, on the CPU, in float32.

    Args:
        name: What decides them.
        largest: The largest of them, > 0.
        shape: Sizes.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randint(-largest, largest + 1, shape, generator=generator).float()


def fractions(name: str, exponent: int, *shape: int) -> Tensor:
    """Multiples of 2**(exponent - 10) from -2**exponent to 2**exponent."""
    return whole_numbers(name, _STEPS, *shape) * 2.0 ** (exponent - 10)
