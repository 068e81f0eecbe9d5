"""Chance that can be had again: every draw follows from the seed, a purpose and what it is for.

So two policies meet the same faults with the same luck, in whatever order they ask, and both
engines of the simulation do, too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """How a spread's values are spread."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    EXPONENTIAL = "exponential"
    ANY_OF = "any_of"


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of seconds.

    Attributes:
        shape: Which one.
        values: FIXED: the value. UNIFORM: least and most. EXPONENTIAL: the mean, and the most,
            at which larger draws are cut. ANY_OF: samples, each as likely as the others.
    """

    shape: Shape
    values: tuple[float, ...]

    @classmethod
    def fixed(cls, seconds: float) -> Spread:
        """Always the same."""
        return cls(Shape.FIXED, (seconds,))

    def draw(self, chance: random.Random) -> float:
        """One value, in seconds, at least 0."""
        if self.shape is Shape.FIXED:
            return self.values[0]
        if self.shape is Shape.UNIFORM:
            return chance.uniform(*self.values)
        if self.shape is Shape.EXPONENTIAL:
            mean_s, most_s = self.values
            return min(chance.expovariate(1 / mean_s), most_s)
        return chance.choice(self.values)


class Chance:
    """All chance of one simulated run.

    Args:
        seed: What everything follows from.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of(self, purpose: str, *key: object) -> random.Random:
        """A generator for one purpose, the same whenever it is asked for."""
        text = "/".join([str(self._seed), purpose, *map(str, key)])
        return random.Random(text)  # noqa: S311 - chance that can be had again, no secret

    def happens(self, probability: float, purpose: str, *key: object) -> bool:
        """Whether something of this probability is the case."""
        return self.of(purpose, *key).random() < probability

    def weighted(self, weights: Sequence[float], purpose: str, *key: object) -> int:
        """An index, drawn by weight."""
        return self.of(purpose, *key).choices(range(len(weights)), weights)[0]
