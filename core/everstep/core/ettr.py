"""Effective training time ratio: time that advanced training over wall-clock time.

Each step counts once, however often it was done, and without what it stood still for checkpoints. A
step's time is the time since the step before it in the same attempt; the first step of an attempt
also pays for the start, of which only a usual step's time (the median of the job's other steps)
counts as training.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core.model import StepSeen


@dataclass(frozen=True, slots=True)
class Ettr:
    """Where a stretch of time went.

    Attributes:
        wall_s: Length of the stretch.
        productive_s: Time of steps done for the first time.
        redone_s: Time of steps that had been done before.
    """

    wall_s: float
    productive_s: float
    redone_s: float

    @property
    def ratio(self) -> float:
        """Productive over wall-clock time, 0 to 1; 0 for an empty stretch."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def lost_s(self) -> float:
        """Time that advanced nothing."""
        return self.wall_s - self.productive_s


def measure(steps: Sequence[StepSeen], from_s: float, to_s: float) -> Ettr:
    """Measure from the moments at which all ranks had finished each step.

    Paper: section 8.1.3 (cumulative ETTR).

    Args:
        steps: In order of time, over all attempts.
        from_s: Start of the stretch.
        to_s: End of the stretch.
    """
    usual_s = usual_step_s(steps)
    productive_s = redone_s = 0.0
    newest = 0
    before: StepSeen | None = None
    for seen in steps:
        same_attempt = before is not None and before.attempt == seen.attempt
        began_s = before.at_s if before is not None else from_s
        took_s = max(0.0, seen.at_s - max(began_s, from_s))
        if not same_attempt:
            took_s = min(took_s, usual_s)
        took_s = max(0.0, took_s - seen.stalled_s)
        if seen.step > newest:
            productive_s += took_s
            newest = seen.step
        else:
            redone_s += took_s
        before = seen
    return Ettr(max(0.0, to_s - from_s), productive_s, redone_s)


def usual_step_s(steps: Sequence[StepSeen]) -> float:
    """Median time of a step that is not the first of its attempt; infinite when there is none."""
    times_s = [
        later.at_s - earlier.at_s
        for earlier, later in itertools.pairwise(steps)
        if earlier.attempt == later.attempt and later.step == earlier.step + 1
    ]
    return statistics.median(times_s) if times_s else float("inf")
