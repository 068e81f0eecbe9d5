"""Several policies that met the same faults: means, intervals, and what one is ahead by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstep.core.simulation.figures import Figures

# Student's t, two-sided 95 %, by degrees of freedom from 1.
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and the 95 % interval around it.

    Attributes:
        mean: The mean.
        low: Lower end; None, as `high`, where there is one seed only, which tells no spread.
        high: Upper end.
    """

    mean: float
    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool | None:
        """Whether the interval holds a value; None where there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= value <= self.high

    def within(self, least: float, most: float) -> Interval:
        """The same, without what lies outside of what is possible."""
        if self.low is None or self.high is None:
            return self
        return Interval(self.mean, max(self.low, least), min(self.high, most))


def interval(values: Sequence[float]) -> Interval:
    """The mean of values that know nothing of each other, with Student's 95 % interval.

    Raises:
        ValueError: There are none.
    """
    if not values:
        raise ValueError("no values")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean)
    t = _T_95[min(len(values) - 1, len(_T_95)) - 1]
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def ettr(runs: Sequence[Figures]) -> Interval:
    """ETTR over the seeds of one policy, 0 to 1."""
    return interval([run.ettr for run in runs]).within(0.0, 1.0)


def ahead(runs: Sequence[Figures], others: Sequence[Figures]) -> Interval:
    """By how much ETTR is higher, seed by seed.

    Whether this interval holds 0 decides whether the two can be told apart: their own intervals
    also hold the luck of the seeds, which they share.

    Raises:
        ValueError: The two were not run with the same number of seeds.
    """
    return interval([one.ettr - other.ettr for one, other in zip(runs, others, strict=True)])


def lost_per_day_s(runs: Sequence[Figures], days: float) -> Mapping[str, float]:
    """Mean time a day that incidents took from training, by symptom."""
    symptoms = sorted({symptom for run in runs for symptom in run.symptoms})
    return {
        symptom: statistics.fmean(
            run.symptoms[symptom].lost_s / days if symptom in run.symptoms else 0.0 for run in runs
        )
        for symptom in symptoms
    }


def mean_of(maps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean by key, largest first; a key that is missing counts as 0."""
    keys = sorted({key for each in maps for key in each})
    means = {key: statistics.fmean(each.get(key, 0.0) for each in maps) for key in keys}
    return dict(sorted(means.items(), key=lambda item: (-item[1], item[0])))
