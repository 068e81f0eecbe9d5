"""Where a job's time went: each moment in one class, so that the classes add up to the wall clock.

Called by `everstep report`. Steps say what was training, incidents say what the gaps between
attempts were.

Paper: ByteRobust, section 8.1.3 (ETTR). The paper reports the ratio; the classes are ours.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everstep.core.ettr import usual_step_s
from everstep.core.model import StepSeen
from everstep.core.record import IncidentRecord, Mark
from everstep.core.vocabulary import Rung, Spent, Symptom

SHORTEST_STALL = 0.01
"""Share of a step from which on standing still for a checkpoint is told apart from the step. Less
is nothing that a report could be precise about, and would cut every step in two."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time, Unix seconds, in which one thing was done.

    Attributes:
        from_s: Its begin.
        to_s: Its end.
        spent: What it was spent on.
        incident: For which incident; None outside of one.
    """

    from_s: float
    to_s: float
    spent: Spent
    incident: int | None = None

    @property
    def length_s(self) -> float:
        """Its length."""
        return self.to_s - self.from_s


def ledger(
    steps: Sequence[StepSeen], incidents: Sequence[IncidentRecord], from_s: float, to_s: float
) -> list[Stretch]:
    """Every moment from `from_s` to `to_s`, in order and without holes.

    A step counts as productive the first time that all ranks finish it. The first step of an
    attempt lasts as long as a usual one (the median); what is before that is the restart. What
    ranks had done of a step when they failed is done again; of ranks that hung it is detection, for
    when in that step they began to hang is not known. Where in a step training stood for a
    checkpoint is not known either: it is put at its end.

    Args:
        steps: In order of time, over all attempts.
        incidents: By number.
        from_s: When the job was started.
        to_s: When it ended, or now.
    """
    usual_s = usual_step_s(steps)
    told = _told(incidents)
    stretches: list[Stretch] = []
    newest, before = 0, from_s
    attempt: int | None = None
    since_s: float | None = None
    for seen in steps:
        at_s = min(max(seen.at_s, before), to_s)
        spent = Spent.PRODUCTIVE if seen.step > newest else Spent.REDONE
        newest = max(newest, seen.step)
        began_s = before
        if seen.attempt != attempt:
            began_s = max(before, at_s - usual_s)
            stretches += _gap(told, before, began_s, since_s)
            since_s = at_s
        stretches += step_stretches(seen, spent, began_s, at_s)
        before, attempt = at_s, seen.attempt
    stretches += _gap(told, before, to_s, since_s)
    return _joined(stretch for stretch in stretches if stretch.length_s > 0)


def step_stretches(seen: StepSeen, spent: Spent, began_s: float, at_s: float) -> list[Stretch]:
    """The step itself, and the time in it in which training stood for a checkpoint."""
    stalled_s = min(seen.stalled_s, at_s - began_s)
    if stalled_s <= 0 or stalled_s < SHORTEST_STALL * (at_s - began_s):
        return [Stretch(began_s, at_s, spent)]
    stood_s = max(began_s, at_s - stalled_s)
    return [Stretch(began_s, stood_s, spent), Stretch(stood_s, at_s, Spent.CHECKPOINT)]


def totals(stretches: Iterable[Stretch]) -> dict[Spent, float]:
    """Seconds by class, every class named."""
    found = dict.fromkeys(Spent, 0.0)
    for stretch in stretches:
        found[stretch.spent] += stretch.length_s
    return found


def ratio(stretches: Sequence[Stretch], from_s: float, to_s: float) -> float:
    """Share of a window that was productive, 0 to 1; 0 for an empty one."""
    productive_s = sum(
        max(0.0, min(each.to_s, to_s) - max(each.from_s, from_s))
        for each in stretches
        if each.spent is Spent.PRODUCTIVE
    )
    return productive_s / (to_s - from_s) if to_s > from_s else 0.0


def gap(
    incidents: Sequence[IncidentRecord], from_s: float, to_s: float, since_s: float | None
) -> list[Stretch]:
    """What happened between two attempts, or before the first, or after the last.

    Args:
        incidents: Those whose marks may lie in between; others do no harm.
        from_s: Its begin: the last step of the attempt before.
        to_s: Its end.
        since_s: The first step of the attempt before; None when there was none.
    """
    return _gap(_told(incidents), from_s, to_s, since_s)


_Told = Sequence[tuple[float, Mark, IncidentRecord]]


def _told(incidents: Sequence[IncidentRecord]) -> _Told:
    """What incidents say that time went into, by time."""
    marks = [(mark.at_s, mark, record) for record in incidents for mark in record.marks]
    return sorted(marks, key=lambda mark: mark[0])


def _gap(told: _Told, from_s: float, to_s: float, since_s: float | None) -> list[Stretch]:
    marks = [(at_s, mark.spent, record) for at_s, mark, record in _between(told, from_s, to_s)]
    edges: list[tuple[float, Spent, int | None]] = [(from_s, *_unseen(marks, since_s))]
    if since_s is not None:
        marks = _seen_before(told, since_s, from_s, [record for *_, record in marks]) + marks
    for at_s, spent, record in marks:
        wished = spent is not Spent.HELD and _only_updated(record, from_s, to_s)
        edges.append((at_s, Spent.UPDATE if wished else spent, record.incident))
    edges.append((to_s, Spent.END, None))
    return [
        Stretch(begin_s, end_s, spent, incident)
        for (begin_s, spent, incident), (end_s, _, _) in itertools.pairwise(edges)
    ]


def _unseen(
    marks: Sequence[tuple[float, Spent, IncidentRecord]], since_s: float | None
) -> tuple[Spent, int | None]:
    """What went on until somebody saw the fault, and for which incident.

    The ranks did what is lost now, or had not begun; or they hung, which shows in nothing but that
    nothing comes: then the fault is as old as their last step.
    """
    if since_s is None:
        return Spent.START, None
    if not marks:
        return Spent.END, None
    at_s, _, record = marks[0]
    if _failure(record, at_s) is Symptom.JOB_HANG:
        return Spent.DETECT, record.incident
    return Spent.REDONE, None


def _failure(record: IncidentRecord, at_s: float) -> Symptom:
    """What had happened at one of an incident's marks: several failures may share an incident."""
    found = (climb.symptom for climb in record.climbs if climb.at_s >= at_s)
    return next((symptom for symptom in found if symptom is not None), record.finding.symptom)


def _between(told: _Told, from_s: float, to_s: float) -> _Told:
    begin = bisect.bisect_left(told, from_s, key=lambda mark: mark[0])
    end = bisect.bisect_left(told, to_s, key=lambda mark: mark[0])
    return told[begin:end]


def _seen_before(
    told: _Told, since_s: float, from_s: float, going_on: Sequence[IncidentRecord]
) -> list[tuple[float, Spent, IncidentRecord]]:
    """What an incident was at already when the ranks made their last step, if one was.

    Ranks whose loss is NaN go on until they are stopped, and so does a job whose code is changed.
    """
    numbers = {record.incident for record in going_on}
    for _, mark, record in reversed(_between(told, since_s, from_s)):
        is_open = record.closed_at_s is None and record.first_step_at_s is None
        if is_open or record.incident in numbers:
            return [(from_s, mark.spent, record)]
    return []


def _only_updated(record: IncidentRecord, from_s: float, to_s: float) -> bool:
    """Whether somebody's wish, and no failure, is what the gap was for."""
    rungs = {climb.rung for climb in record.climbs if from_s <= climb.at_s <= to_s}
    return rungs == {Rung.UPDATE}


def _joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Neighbours of one kind as one stretch."""
    joined: list[Stretch] = []
    for each in stretches:
        last = joined[-1] if joined else None
        if last is not None and (last.spent, last.incident) == (each.spent, each.incident):
            joined[-1] = Stretch(last.from_s, each.to_s, each.spent, each.incident)
        else:
            joined.append(each)
    return joined
