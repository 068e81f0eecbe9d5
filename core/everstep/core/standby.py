"""How many machines to keep warm for those that fail. Called through the job's spec."""

from __future__ import annotations

from fractions import Fraction


def standby_count(machines: int, failure_rate_per_day: float, quantile: float) -> int:
    """Standbys that are enough on a day as bad as `quantile` of all days.

    The smallest k such that at most k of the machines fail within a day with at least this
    probability, when each fails by itself. Integers throughout, so the answer is exact for any
    number of machines.

    Paper: ByteRobust 2025, section 6.2, Table 5.

    Args:
        machines: Machines in the job, 0 or more.
        failure_rate_per_day: Probability that one machine fails within a day, 0 to 1.
        quantile: Above 0 and below 1; 0.99 is the paper's P99.

    Raises:
        ValueError: An argument outside its range.
    """
    if machines < 0 or not 0 <= failure_rate_per_day <= 1 or not 0 < quantile < 1:
        raise ValueError(f"out of range: {machines=}, {failure_rate_per_day=}, {quantile=}")
    failing, all_days = Fraction(failure_rate_per_day).as_integer_ratio()
    surviving = all_days - failing
    if surviving == 0:
        return machines
    share, whole = Fraction(quantile).as_integer_ratio()
    wanted = share * all_days**machines
    # Weight of "exactly k fail": comb(machines, k) * failing^k * surviving^(machines - k).
    count, weight = 0, surviving**machines
    covered = weight
    while covered * whole < wanted:
        weight = weight * (machines - count) * failing // ((count + 1) * surviving)
        count += 1
        covered += weight
    return count
