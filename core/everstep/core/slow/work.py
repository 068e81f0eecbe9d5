"""What a step costs each rank, from the counters that come with ranks' progress.

Two measures, as neither tells everywhere:

- `cpu`: how long the rank's main thread was on a core. Its agent reads it from the kernel, so
  that it needs nothing of the script; it holds where ranks share cores, as what others use does not
  count. It sees what computes on the CPU, and not a GPU: whoever waits for one by spinning is on
  the core all the time, on every rank alike.
- `wall`: how long the rank was outside collectives, where its process tells how long it was in
  them. It sees whatever makes a rank late, a GPU or a sleep too, and is noise where cores are
  shared.

Both are judged, each by its own noise (`usual`), so nobody has to choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from everstep.core.model import RankProgress

FEWEST_STEPS = 3
"""Of every rank in a round: counters are read a moment after a step's end, not at it."""


class Measure(StrEnum):
    """What is compared between ranks."""

    CPU = "cpu"
    WALL = "wall"


@dataclass(frozen=True, slots=True)
class Cost:
    """What steps of one round cost one rank.

    Attributes:
        machine: Where it ran.
        step_s: How long a step took it, waiting included.
        compute_s: How much of that was its own, by the measure.
    """

    machine: str
    step_s: float
    compute_s: float

    @property
    def wait_s(self) -> float:
        """The rest of a step: for other ranks, or for a core."""
        return max(0.0, self.step_s - self.compute_s)


Costs = Mapping[int, Cost]
"""By rank."""


class WorkBook:
    """Keeps the counters of all ranks at two moments: when the round began, and now.

    Args:
        world_size: Ranks of the job; a round in which one of them says nothing tells nothing.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._began: dict[Measure, dict[int, RankProgress]] = {}
        self._now: dict[Measure, dict[int, RankProgress]] = {}

    def note(self, progress: RankProgress) -> None:
        """Take in a report; the first one of a step counts, as it came closest to its end."""
        for measure in Measure:
            if _counter(measure, progress) is None:
                continue
            newest = self._now.setdefault(measure, {})
            known = newest.get(progress.rank)
            if known is None or progress.step > known.step:
                newest[progress.rank] = progress
                self._began.setdefault(measure, {}).setdefault(progress.rank, progress)

    def begin(self) -> None:
        """A round begins."""
        self._began = {measure: dict(newest) for measure, newest in self._now.items()}

    def forget(self) -> None:
        """What comes next is no continuation of what was: begin anew with it."""
        self._began, self._now = {}, {}

    def costs(self) -> dict[Measure, Costs]:
        """What the round's steps cost, by each measure that every rank has enough of."""
        return {
            measure: costs
            for measure in self._now
            if len(costs := self._costs(measure)) == self._world_size
        }

    def _costs(self, measure: Measure) -> Costs:
        costs: dict[int, Cost] = {}
        for rank, now in self._now[measure].items():
            began = self._began[measure].get(rank)
            if began is None or now.step - began.step < FEWEST_STEPS:
                continue
            steps = now.step - began.step
            took_s = now.at_s - began.at_s
            counted_s = (_counter(measure, now) or 0.0) - (_counter(measure, began) or 0.0)
            own_s = counted_s if measure is Measure.CPU else took_s - counted_s
            costs[rank] = Cost(now.machine, took_s / steps, max(0.0, own_s) / steps)
        return costs


def _counter(measure: Measure, progress: RankProgress) -> float | None:
    """Seconds on a core, or in collectives, since the rank's process began."""
    return progress.ran_s if measure is Measure.CPU else progress.waited_s
