"""The ledger of a job that runs: the same classes, kept up step by step.

The analyzer serves it as metrics. A job of months has millions of steps, which nobody may count
again at every look; incidents are few, and what the gaps between attempts were is known only when
their records are.

Departs from `core.ledger`, which sees the whole run: the usual time of a step is the median of the
newest ones when an attempt begins, and not that of all.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from everstep.core import ledger
from everstep.core.ledger import Stretch
from everstep.core.model import StepSeen
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Spent

NEWEST_STEPS = 1_000
"""From how many of them the usual time of a step is told."""


class Meter:
    """Counts where a job's time went.

    Args:
        window_s: How far back single moments are remembered, for sliding figures.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._counted = dict.fromkeys(Spent, 0.0)
        self._recent: deque[Stretch] = deque()
        self._gaps: list[tuple[float, float, float | None]] = []
        self._since_s: float | None = None
        self._times_s: deque[float] = deque(maxlen=NEWEST_STEPS)
        self._newest_step = 0
        self._attempt: int | None = None
        self._until_s: float | None = None

    @property
    def until_s(self) -> float | None:
        """When the newest step was finished, or None before the first."""
        return self._until_s

    def step(self, seen: StepSeen) -> None:
        """All ranks have finished a step."""
        before_s = self._until_s
        at_s = seen.at_s if before_s is None else max(seen.at_s, before_s)
        spent = Spent.PRODUCTIVE if seen.step > self._newest_step else Spent.REDONE
        self._newest_step = max(self._newest_step, seen.step)
        if seen.attempt == self._attempt and before_s is not None:
            began_s = before_s
            if at_s > before_s:
                # An analyzer that was started anew is told the newest steps once more.
                self._times_s.append(at_s - before_s)
        else:
            # Of a first step of all, not even the begin of the job is known here.
            began_s = at_s - self._usual_s()
            if before_s is not None:
                began_s = max(began_s, before_s)
            begin_s = float("-inf") if before_s is None else before_s
            self._gaps.append((begin_s, began_s, self._since_s))
            self._since_s = at_s
        for stretch in ledger.step_stretches(seen, spent, began_s, at_s):
            self._counted[stretch.spent] += stretch.length_s
            self._recent.append(stretch)
        while self._recent and self._recent[0].to_s < at_s - self._window_s:
            self._recent.popleft()
        self._attempt, self._until_s = seen.attempt, at_s

    def spent(
        self, incidents: Sequence[IncidentRecord], from_s: float, now_s: float
    ) -> dict[Spent, float]:
        """Seconds by class since the job was started; they add up to `now_s - from_s`.

        Args:
            incidents: By number.
            from_s: When the job was started.
            now_s: Not before the newest step.
        """
        spent = dict(self._counted)
        for stretch in self._between(incidents, from_s, now_s):
            spent[stretch.spent] += stretch.length_s
        return spent

    def settle(self, incidents: Sequence[IncidentRecord], from_s: float) -> None:
        """Count the gaps between attempts for good: no incident of before will say more of them.

        Args:
            incidents: All whose marks lie in gaps that are not settled.
            from_s: When the job was started.
        """
        for begin_s, end_s, since_s in self._gaps:
            for stretch in ledger.gap(incidents, max(begin_s, from_s), end_s, since_s):
                self._counted[stretch.spent] += max(0.0, stretch.length_s)
        self._gaps = []

    def recent_ratio(self, from_s: float, now_s: float) -> float:
        """Share of the sliding window that was productive, 0 to 1."""
        return ledger.ratio(tuple(self._recent), max(from_s, now_s - self._window_s), now_s)

    def _between(
        self, incidents: Sequence[IncidentRecord], from_s: float, now_s: float
    ) -> list[Stretch]:
        until_s = from_s if self._until_s is None else self._until_s
        gaps = [*self._gaps, (until_s, now_s, self._since_s)]
        return [
            stretch
            for begin_s, end_s, since_s in gaps
            for stretch in ledger.gap(incidents, max(begin_s, from_s), end_s, since_s)
            if stretch.length_s > 0
        ]

    def _usual_s(self) -> float:
        return statistics.median(self._times_s) if self._times_s else 0.0
