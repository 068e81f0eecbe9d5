"""Whether a network fault belongs to a switch: several machines that complain together."""

from __future__ import annotations

from collections.abc import Iterable

from everstep.core.model import Alert
from everstep.core.vocabulary import Symptom

WINDOW_S = 60.0
"""Paper, Table 3: a switch is told by two looks of 30 s each."""

MIN_MACHINES = 3
"""Two ends of one bad cable are two machines; a switch has more."""


def shared_switch(
    alerts: Iterable[Alert], window_s: float = WINDOW_S, min_machines: int = MIN_MACHINES
) -> tuple[str, ...]:
    """The machines that seem to have lost one switch.

    Neighbours on a shared fabric report in turn, so the first to report need not be the culprit,
    and evicting one of them mends nothing.

    Args:
        alerts: Alerts in any order; all but network alerts of machines are left out.
        window_s: How close together the machines' first alerts must lie.
        min_machines: How many machines make a switch.

    Returns:
        The largest set of machines whose alerts lie within one window, sorted; empty when there
        are too few.
    """
    network = sorted(
        (a.at_s, a.machine)
        for a in alerts
        if a.symptom is Symptom.INFINIBAND_ERROR and a.machine is not None
    )
    best: tuple[str, ...] = ()
    for start_s, _ in network:
        together = {machine for at_s, machine in network if 0 <= at_s - start_s <= window_s}
        if len(together) > len(best):
            best = tuple(sorted(together))
    return best if len(best) >= min_machines else ()
