"""Robust figures over the newest values of a series: what is usual, and how far values stray."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Sequence
from statistics import median

_DEVIATIONS_PER_MAD = 1.4826
"""Standard deviations in a median absolute deviation, for values that are normally distributed."""


class RunningMedian:
    """Median of the newest values; values that stray do not move it.

    Args:
        window: How many values, > 0.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def value(self) -> float:
        """The median, or of an even number the upper one; there must be a value."""
        return self._sorted[len(self._sorted) // 2]

    def note(self, value: float) -> None:
        """Take in a finite value."""
        if len(self._newest) == self._window:
            del self._sorted[bisect.bisect_left(self._sorted, self._newest.popleft())]
        self._newest.append(value)
        bisect.insort(self._sorted, value)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank).

    Args:
        values: At least one, in any order.
        share: Over 0, at most 1.
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(values: Sequence[float], usual: float) -> float:
    """Standard deviation around `usual`, by the median absolute deviation, so without outliers."""
    return _DEVIATIONS_PER_MAD * median(abs(value - usual) for value in values)
