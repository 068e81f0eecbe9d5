"""How many machines to keep warm for those that fail, and when to ask for more.

Called through the job's spec, and by the part of the job's workflow that looks after standbys.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from decimal import Decimal, localcontext

PAUSE_S = 60.0
"""After the second machine in a row that was refused; it doubles with each further one."""

LONGEST_PAUSE_S = 3600.0

_DIGITS = 60
"""A probability as Python keeps it has up to 53 binary ones."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a job has seen of its machines' failures so far.

    Attributes:
        failures: Machines that failed.
        machine_days: Days that its machines have run, summed over machines, >= 0.
    """

    failures: int
    machine_days: float


NOTHING_SEEN = Seen(0, 0.0)


def learned_rate(prior_rate: float, prior_machine_days: float, seen: Seen) -> float:
    """The probability that one machine fails within a day, after what the job has seen itself.

    The mean of a Beta distribution that begins as if the prior rate had been seen for so many
    machine-days. Paper: ByteRobust 2025, section 6.2, takes the rate from history without saying
    how; a prior keeps the first failure, or a week without any, from deciding alone.

    Args:
        prior_rate: What is believed beforehand, 0 to 1.
        prior_machine_days: How much that counts, > 0.
        seen: What the job has seen.

    Returns:
        0 to 1: a machine counts as failed once a day at most.
    """
    failures = prior_rate * prior_machine_days + seen.failures
    return min(1.0, failures / (prior_machine_days + seen.machine_days))


def pause_s(refused: int) -> float:
    """How long to wait before more machines are asked for, after so many in a row were refused.

    What refuses one machine may be its own fault; what refuses three is perhaps no machine's.
    """
    return min(PAUSE_S * 2.0 ** min(refused - 2, 16), LONGEST_PAUSE_S) if refused > 1 else 0.0


@functools.lru_cache(maxsize=64)
def standby_count(machines: int, failure_rate_per_day: float, quantile: float) -> int:
    """Standbys that are enough on a day as bad as `quantile` of all days.

    The smallest k such that at most k of the machines fail within a day with at least this
    probability, when each fails by itself. Computed with 60 digits, and exponents as small as need
    be, so the answer is right for any number of machines.

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
    with localcontext(prec=_DIGITS):
        fails, enough = Decimal(failure_rate_per_day), Decimal(quantile)
        survives = 1 - fails
        if not survives:
            return machines
        count, ways, covered = 0, Decimal(1), survives**machines
        while covered < enough:
            count += 1
            ways = ways * (machines - count + 1) / count
            covered += ways * fails**count * survives ** (machines - count)
    return count
