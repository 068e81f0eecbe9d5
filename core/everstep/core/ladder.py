"""The escalation ladder: from evidence and the rungs already climbed to the next rung.

Called by the incident workflow once a round. It always ends: an eviction names machines that were
not evicted before, a reattempt happens once an incident, and what is left is a person.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core.model import Climb, Finding, Rung


@dataclass(frozen=True, slots=True)
class Brake:
    """What the ladder may not exceed.

    Attributes:
        machines: Machines in the job.
        max_evicted_ratio: Largest share of them evicted in the window, 0 to 1.
        evicted_in_window: Machines evicted in the window so far, this incident's included.
        restarts_without_progress: Restarts of this incident after which no new step was seen.
        max_restarts_without_progress: How many of those are allowed.
        approved: Whether a person has allowed this incident to go past these limits.
    """

    machines: int
    max_evicted_ratio: float
    evicted_in_window: int
    restarts_without_progress: int
    max_restarts_without_progress: int
    approved: bool = False

    @property
    def max_evicted(self) -> int:
        """Most machines that may be evicted in the window; always at least one."""
        return max(1, math.floor(self.machines * self.max_evicted_ratio))


@dataclass(frozen=True, slots=True)
class Decision:
    """The next rung, whom it concerns, and why."""

    rung: Rung
    machines: tuple[str, ...]
    reason: str


def next_rung(finding: Finding, climbed: Sequence[Climb], brake: Brake) -> Decision:
    """Choose the next rung.

    Paper: sections 4.1 and 4.2, Fig. 5, as far as the rungs exist: a high-confidence machine fault
    is evicted; anything else is tried again once; if it comes back, the machine that it points at
    goes. Departs from it by the brake: at most a share of the job is evicted in a window, and a
    restart that brings no progress is not repeated for ever; both wait for a person.

    Args:
        finding: What the evidence says.
        climbed: Rungs of this incident so far, in order.
        brake: Limits, and how much of them is used up.

    Returns:
        The decision. PAGE means: hold, and wait for a person.
    """
    if (
        not brake.approved
        and brake.restarts_without_progress >= brake.max_restarts_without_progress
    ):
        return Decision(
            Rung.PAGE,
            (),
            f"{brake.restarts_without_progress} restarts brought no new step: {finding.reason}",
        )
    gone_already = {machine for climb in climbed for machine in climb.machines}
    suspects = tuple(m for m in finding.machines if m not in gone_already)
    tried_again = any(climb.rung is Rung.REATTEMPT for climb in climbed)
    if suspects and (finding.confident or tried_again):
        return _evict(suspects, finding, brake)
    if not tried_again:
        return Decision(Rung.REATTEMPT, (), f"no machine stands out for certain: {finding.reason}")
    if brake.approved:
        return Decision(Rung.REATTEMPT, (), f"approved by a person: {finding.reason}")
    return Decision(Rung.PAGE, (), f"nothing left to try: {finding.reason}")


def _evict(suspects: tuple[str, ...], finding: Finding, brake: Brake) -> Decision:
    total = brake.evicted_in_window + len(suspects)
    if total > brake.max_evicted and not brake.approved:
        return Decision(
            Rung.PAGE,
            suspects,
            f"evicting {', '.join(suspects)} would make {total} evictions within the window, "
            f"and at most {brake.max_evicted} of {brake.machines} machines may go without approval",
        )
    return Decision(Rung.EVICT, suspects, finding.reason)
