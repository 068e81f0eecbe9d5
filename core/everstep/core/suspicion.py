"""What trials of groups of machines say about each machine.

Called by the replay planner. A trial runs the job, made small, on some machines; it fails when the
incident's symptom shows. One that passes clears its machines; one that fails accuses those of its
machines that nothing clears; one that could not be told says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum


class TrialOutcome(StrEnum):
    """How a trial ended."""

    FAILED = "failed"
    PASSED = "passed"
    COULD_NOT_TELL = "could_not_tell"


@dataclass(frozen=True, slots=True)
class Group:
    """Machines that run together in one trial.

    Attributes:
        subjects: Machines on trial, ascending.
        fillers: Machines that are there to make up the size, cleared before; ascending.
    """

    subjects: tuple[int, ...]
    fillers: tuple[int, ...] = ()

    @property
    def machines(self) -> tuple[int, ...]:
        """All of them, ascending."""
        return tuple(sorted((*self.subjects, *self.fillers)))


@dataclass(frozen=True, slots=True)
class Trial:
    """A group, and how it went."""

    group: Group
    outcome: TrialOutcome


@dataclass(frozen=True, slots=True)
class Reading:
    """What all trials together say.

    Attributes:
        faulty: Machines that alone explain some failure, ascending.
        cleared: Machines that passed and that no unexplained failure brings back, ascending.
        pending: Machines about which a further trial would tell something, ascending.
        disputed: Failed groups whose machines all passed elsewhere, and which no faulty machine
            explains: a fault that shows only sometimes, or only in company.
        untested: Machines in no trial that could be told, ascending.
    """

    faulty: tuple[int, ...]
    cleared: tuple[int, ...]
    pending: tuple[int, ...]
    disputed: tuple[Group, ...]
    untested: tuple[int, ...]


def read(machines: Collection[int], trials: Sequence[Trial]) -> Reading:
    """Draw the conclusions that hold for any number of faulty machines.

    A failure weighs more than a pass: a fault may fail to show, but does not show where none is. So
    whoever fails as the only subject is faulty although it passed before.

    Args:
        machines: All machines that take part.
        trials: In the order in which they were made.
    """
    passed = {m for t in _ended(trials, TrialOutcome.PASSED) for m in t.group.machines}
    failed = [t.group for t in _ended(trials, TrialOutcome.FAILED)]
    faulty = {m for group in failed for m in _only_explanation(group, passed)}
    alone = {t.group.subjects[0] for t in trials if _tells_of_one(t)}
    disputed = [g for g in failed if not faulty & set(g.machines) and set(g.subjects) <= passed]
    accused = {m for group in failed for m in group.subjects if m not in passed}
    disputable = {m for group in disputed for m in group.subjects if m not in alone}
    told = passed | {m for group in failed for m in group.machines}
    untested = set(machines) - told
    pending = (accused | disputable | untested) - faulty
    return Reading(
        faulty=tuple(sorted(faulty)),
        cleared=tuple(sorted(passed - pending - faulty)),
        pending=tuple(sorted(pending)),
        disputed=tuple(disputed),
        untested=tuple(sorted(untested)),
    )


def _ended(trials: Sequence[Trial], outcome: TrialOutcome) -> list[Trial]:
    return [trial for trial in trials if trial.outcome is outcome]


def _only_explanation(group: Group, passed: Collection[int]) -> tuple[int, ...]:
    """The one machine that can have made a group fail, if there is one."""
    if len(group.subjects) == 1:
        return group.subjects
    left = tuple(machine for machine in group.subjects if machine not in passed)
    return left if len(left) == 1 else ()


def _tells_of_one(trial: Trial) -> bool:
    return len(trial.group.subjects) == 1 and trial.outcome is not TrialOutcome.COULD_NOT_TELL
