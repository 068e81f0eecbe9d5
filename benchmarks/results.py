"""How every benchmark ends: one line a goal, and an exit code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class Result:
    """One figure with its goal.

    Attributes:
        name: What was measured.
        value: The figure.
        unit: Its unit; "ratio" for one against a rival.
        relation: ">=" or "<=".
        goal: What the figure is held against.
    """

    name: str
    value: float
    unit: str
    relation: str
    goal: float

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return _RELATIONS[self.relation](self.value, self.goal)

    def __str__(self) -> str:
        return f"RESULT {self.name} {self.value:.3g} {self.unit} goal {self.relation}{self.goal:g}"


def conclude(results: Sequence[Result]) -> int:
    """Print every result as the last lines; 0 when all goals are met, else 1."""
    for result in results:
        print(result)
    return 0 if results and all(result.met for result in results) else 1
