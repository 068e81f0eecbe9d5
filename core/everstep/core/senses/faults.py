"""Which faults stand on this machine: one alert a fault, and hysteresis before the next.

A fault is a symptom of a subject, however many senses see it: a GPU that NVML has lost and that
the kernel log reports as fallen off the bus is one fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.core.senses import thresholds
from everstep.core.senses.inspection import Inspection
from everstep.core.vocabulary import Symptom, Verdict


@dataclass(slots=True)
class _Standing:
    """One fault that was raised and is not over yet.

    Attributes:
        confident: Whether it was raised as one that is certain.
        seen_by: When each item that saw it last saw it.
        healthy_since: Since when each item has seen it healthy; absent while it does not.
    """

    confident: bool
    seen_by: dict[str, float]
    healthy_since: dict[str, float] = field(default_factory=dict[str, float])


_Key = tuple[Symptom, str]


class FaultBook:
    """Keeps what every look said, and tells new faults from standing ones."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], Inspection] = {}
        self._looks: dict[tuple[str, str], int] = {}
        self._standing: dict[_Key, _Standing] = {}

    def note(self, inspection: Inspection, at_s: float) -> bool:
        """Take in a look at `at_s` of the monotonic clock; true when it is a new fault.

        A standing fault is new once more when it becomes certain. Could-not-tell changes nothing:
        it neither raises a fault nor clears one.
        """
        place = (inspection.item, inspection.subject)
        harmless = inspection.verdict is not Verdict.FAULTY
        if harmless and inspection.item in thresholds.EVENT_ITEMS:
            # A harmless line is no proof that an earlier one is over.
            self._latest.setdefault(place, inspection)
            return False
        self._latest[place] = inspection
        if inspection.verdict is Verdict.HEALTHY:
            self._looks.pop(place, None)
            self._note_healthy(inspection, at_s)
            return False
        if inspection.verdict is Verdict.UNOBSERVABLE or inspection.symptom is None:
            return False
        self._looks[place] = self._looks.get(place, 0) + 1
        if self._looks[place] < thresholds.patience(inspection.item).looks:
            return False
        return self._raise((inspection.symptom, inspection.subject), inspection, at_s)

    def expire(self, at_s: float) -> None:
        """Forget faults that are over: healthy for long enough, or events long past."""
        for key, fault in list(self._standing.items()):
            if all(self._over(fault, item, at_s) for item in fault.seen_by):
                del self._standing[key]
                for item in thresholds.EVENT_ITEMS & fault.seen_by.keys():
                    self._latest.pop((item, key[1]), None)

    def latest(self) -> list[Inspection]:
        """What the last look at everything said, sorted by item and subject."""
        return [self._latest[place] for place in sorted(self._latest)]

    def standing(self) -> list[tuple[Symptom, str]]:
        """The faults that stand, sorted."""
        return sorted(self._standing)

    def _raise(self, key: _Key, inspection: Inspection, at_s: float) -> bool:
        fault = self._standing.get(key)
        if fault is None:
            self._standing[key] = _Standing(inspection.confident, {inspection.item: at_s})
            return True
        fault.seen_by[inspection.item] = at_s
        fault.healthy_since.pop(inspection.item, None)
        if inspection.confident and not fault.confident:
            fault.confident = True
            return True
        return False

    def _note_healthy(self, inspection: Inspection, at_s: float) -> None:
        for (_, subject), fault in self._standing.items():
            if subject == inspection.subject and inspection.item in fault.seen_by:
                fault.healthy_since.setdefault(inspection.item, at_s)
        self.expire(at_s)

    def _over(self, fault: _Standing, item: str, at_s: float) -> bool:
        since = fault.healthy_since.get(item)
        if since is not None:
            return at_s - since >= thresholds.patience(item).clear_after_s
        return (
            item in thresholds.EVENT_ITEMS
            and at_s - fault.seen_by[item] >= thresholds.EVENT_CLEARS_S
        )
