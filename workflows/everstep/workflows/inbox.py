"""What an incident has been told, and how much of it has been judged.

Each round judges the alerts that came since the last one; whatever comes later may overtake it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from everstep.core.model import Alert, MachineInfo
from everstep.core.vocabulary import Symptom


class Inbox:
    """The alerts of one incident, in the order in which they came. Lives inside a workflow.

    Args:
        alerts: The alerts that opened it; at least one.
    """

    def __init__(self, alerts: Sequence[Alert]) -> None:
        self._alerts: list[Alert] = []
        self._judged = 0
        self._round_from = 0
        self._lost: dict[str, float] = {}
        self._newest: list[Alert] = []
        self._for_next: list[Alert] = []
        self.kept: list[Alert] = []
        """Evidence of the round before that led to nothing yet."""
        self.take(alerts)

    def take(self, alerts: Sequence[Alert]) -> None:
        """More evidence."""
        self._alerts += alerts
        for alert in alerts:
            if alert.symptom is Symptom.AGENT_LOST and alert.machine is not None:
                known_s = self._lost.get(alert.machine, -math.inf)
                self._lost[alert.machine] = max(alert.at_s, known_s)

    @property
    def round(self) -> list[Alert]:
        """What came in this round."""
        return self._alerts[self._round_from :]

    def begin_round(self) -> None:
        """A round begins: what has not been judged yet is its evidence."""
        self._round_from = self._judged
        self.kept, self._for_next = self._for_next, []

    def judge(self) -> list[Alert]:
        """What was kept, and all evidence of the round; when none came, the newest of all."""
        self._judged = len(self._alerts)
        self._newest = self.kept + (self._alerts[self._round_from :] or self._alerts[-1:])
        return self._newest

    def keep(self, denied: Collection[str]) -> None:
        """The newest judgement led to nothing yet: the next round hears its evidence, too.

        Args:
            denied: Machines that a person let stay: what spoke against them is not certain again.
        """
        self._for_next = [
            replace(alert, confident=alert.confident and alert.machine not in denied)
            for alert in self._newest
        ]

    def give_back_round(self) -> None:
        """What this round judged belongs to another incident."""
        self._judged = self._round_from

    def unsettled(self) -> list[Alert]:
        """What came after the newest judgement."""
        return self._alerts[self._judged :]

    def settled_keys(self) -> tuple[str, ...]:
        """Keys of all that was judged."""
        return tuple(alert.key for alert in self._alerts[: self._judged])

    def is_lost(self, info: MachineInfo) -> bool:
        """Whether this very agent, and not an earlier one of that name, is said to be gone."""
        return self._lost.get(info.machine, -math.inf) >= info.joined_at_s
