"""Medians of noisy measurements, with what can be said of them.

Runs as short as these are disturbed by whatever else a machine does, upwards and rarely evenly:
a mean follows the worst of it, a minimum the luckiest moment. Things that are compared are measured
in turns, each beside the other, and the median of their ratios is taken.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Median:
    """A median and the interval that holds the true one.

    Attributes:
        value: The sample's median.
        low: Lower end; minus infinity when there are too few values for one.
        high: Upper end, likewise.
    """

    value: float
    low: float
    high: float

    def decided(self, limit: float) -> bool:
        """Whether the whole interval lies on one side of `limit`."""
        return self.high <= limit or self.low > limit

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def median(values: Sequence[float], confidence: float = 0.99) -> Median:
    """The median of at least one value, and its interval by order statistics.

    Nothing is assumed of the noise but that values are independent: the number of them below the
    true median is binomial.
    """
    ordered = sorted(values)
    rank = _rank(len(ordered), (1.0 - confidence) / 2)
    low, high = (-math.inf, math.inf) if rank == 0 else (ordered[rank - 1], ordered[-rank])
    return Median(statistics.median(ordered), low, high)


def _rank(count: int, tail: float) -> int:
    """The highest rank below which fewer than `tail` of all samples have their true median."""
    below = 0.0
    for rank in range(count):
        below += math.comb(count, rank) / 2.0**count
        if below > tail:
            return rank
    return 0
