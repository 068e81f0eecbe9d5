"""What is told of a simulated incident, as long as its job's days last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everstep.core.record import IncidentRecord, Mark
from everstep.core.simulation.faults import DAY_S
from everstep.core.simulation.setting import Setting
from everstep.core.vocabulary import Outcome, Spent


class Told:
    """An incident over a clock that is only counted up: its record, and what is told of it.

    Attributes:
        now_s: What the clock shows.
        record: What recovery goes by.
        told: The same as it stood when the job's days were over.

    Args:
        setting: Of the job.
        record: As it opens.
        now_s: When it opens.
    """

    def __init__(self, setting: Setting, record: IncidentRecord, now_s: float) -> None:
        self._end_s = setting.days * DAY_S
        self.now_s: float = now_s
        self.record = self.told = record

    def _is_over(self) -> bool:
        """Whether the job's days are."""
        return self.now_s > self._end_s

    def _mark(self, spent: Spent, at_s: float | None = None) -> None:
        mark = Mark(self.now_s if at_s is None else at_s, spent)
        outcome = Outcome.HELD if spent is Spent.HELD else Outcome.OPEN
        self._change(marks=(*self.record.marks, mark), outcome=outcome)

    def _change(self, **fields: Any) -> None:
        self.record = replace(self.record, **fields)
        if not self._is_over():
            self.told = self.record
