"""Whether a loss or a gradient norm is as it should be: a number, and not far over the usual."""

from __future__ import annotations

import math
from enum import Enum, auto

from everstep.core.senses.running import RunningMedian

WINDOW = 64
"""Newest values that say what is usual."""

FEWEST = 20
"""Values before anything is called unusual: the first steps after a start are."""

CALM_AFTER = 5
"""Values in a row, each under half the jump, after which a jump is over."""


class Reading(Enum):
    """What one value means."""

    FINE = auto()
    JUMPED = auto()
    STILL_HIGH = auto()
    NOT_FINITE = auto()


class NumberSense:
    """Follows one number of one rank.

    Paper: section 4.1 (NaN, or five times the usual). The paper does not say what is usual: here it
    is the median of the newest values, which a spike does not move. Numbers whose median is not
    positive have no "five times" and are checked for NaN only.

    Args:
        jump_ratio: How many times the usual makes a jump, > 1.
    """

    def __init__(self, jump_ratio: float) -> None:
        self._jump_ratio = jump_ratio
        self._usual = RunningMedian(WINDOW)
        self._calm = CALM_AFTER

    @property
    def usual(self) -> float | None:
        """What is usual, or None as long as nobody can tell."""
        return self._usual.value if len(self._usual) >= FEWEST else None

    @property
    def high(self) -> bool:
        """Whether a jump is not over yet."""
        return self._calm < CALM_AFTER

    def note(self, value: float) -> Reading:
        """Take in a value; JUMPED once a jump, STILL_HIGH until it is over."""
        if not math.isfinite(value):
            return Reading.NOT_FINITE
        usual = self.usual
        self._usual.note(value)
        ratio = value / usual if usual is not None and usual > 0 else 0.0
        if ratio >= self._jump_ratio:
            known, self._calm = self.high, 0
            return Reading.STILL_HIGH if known else Reading.JUMPED
        if self.high:
            self._calm = self._calm + 1 if ratio < self._jump_ratio / 2 else 0
        return Reading.STILL_HIGH if self.high else Reading.FINE
