"""The statistics of benchmarks, against worked examples."""

from __future__ import annotations

import math
import random

from benchmarks.medians import Median, median


def test_few_values_have_no_interval() -> None:
    assert median([3.0, 1.0, 2.0]) == Median(2.0, -math.inf, math.inf)
    assert not median([0.9] * 3).decided(1.0)


def test_the_interval_is_that_of_the_binomial_distribution() -> None:
    # Of 20 values, 3 or fewer lie below the true median with probability 0.0013, 4 with 0.0046
    # more: so at most one in 200 samples has fewer than 4 below it.
    assert median(list(map(float, range(1, 21)))) == Median(10.5, 4.0, 17.0)
    assert median(list(map(float, range(1, 21))), 0.95) == Median(10.5, 6.0, 15.0)


def test_a_limit_is_decided_when_the_whole_interval_is_on_one_side() -> None:
    found = Median(1.01, 1.0, 1.02)
    assert found.decided(1.02)
    assert not found.decided(1.01)
    assert found.decided(0.99)


def test_the_interval_holds_the_true_median_whatever_the_noise() -> None:
    dice = random.Random(7)  # noqa: S311 - to be the same each time
    held = 0
    for _ in range(300):
        found = median([1.0 + dice.expovariate(5.0) for _ in range(24)], 0.9)
        held += found.low <= 1.0 + math.log(2) / 5.0 <= found.high
    assert held >= 260
