"""Ninety days of a simulated job, event by event: the engine for sweeps.

Called by `everstep simulate`. The same faults, cluster and decisions go through the real workflows
in `everstep.workers.simulation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from everstep.core import memory
from everstep.core.memory import CodeVersion
from everstep.core.model import StepSeen
from everstep.core.record import IncidentRecord, Mark
from everstep.core.simulation import showing
from everstep.core.simulation.agenda import Agenda
from everstep.core.simulation.faults import DAY_S, Fault
from everstep.core.simulation.naive import Naive
from everstep.core.simulation.recovery import Job, Recovery
from everstep.core.simulation.setting import Method, Setting
from everstep.core.simulation.world import Strike, World
from everstep.core.vocabulary import Spent

FIRST_VERSION = "code-0"

EARLIER = tuple(CodeVersion(f"earlier-{n}", f"earlier-{n}", proven=True) for n in (1, 2))
"""A job of months has had other code before."""

Recovered = tuple[IncidentRecord, Strike | None, float]
"""An incident's record, what the next one is about if it is here already, and when it was over."""


@dataclass(frozen=True, slots=True)
class Met:
    """An incident, and what it was really about.

    Attributes:
        record: What recovery made of it.
        strike: What opened it.
    """

    record: IncidentRecord
    strike: Strike

    @property
    def fault(self) -> Fault:
        """What went wrong."""
        return self.strike.trouble.fault


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated run, over.

    Attributes:
        setting: What it was given.
        met: Its incidents, in order.
        steps: The steps that tell where time went.
        guilty: Machines that had a fault.
        missed: Faults of machines that were still part of the job when their incident closed.
        to_s: When it ended, in seconds since its begin.
    """

    setting: Setting
    met: tuple[Met, ...]
    steps: tuple[StepSeen, ...]
    guilty: frozenset[str]
    missed: int
    to_s: float

    @property
    def records(self) -> list[IncidentRecord]:
        """The incidents, each with the time that passed before it was noticed."""
        return [with_detection(one.record, one.strike) for one in self.met]


def simulate(
    setting: Setting, faults: Iterable[Fault], progress: Callable[[float], None] | None = None
) -> Run:
    """Run a job to the end of its days.

    Args:
        setting: The job, and how it is recovered.
        faults: What goes wrong, in order of time.
        progress: Is told how much of it is done, 0 to 1.
    """
    world = World(setting, faults, inspected=setting.choices.method is Method.LADDER)
    end_s = setting.days * DAY_S
    job = begin(world)
    recover = _by_ladder if setting.choices.method is Method.LADDER else _by_habit
    met: list[Met] = []
    missed = 0
    strike, now_s = world.strike, 0.0
    while strike is not None and (now_s := max(now_s, strike.alert_at_s)) < end_s:
        opened_by = world.notice()
        record, follows, now_s = recover(job, len(met) + 1, opened_by, now_s)
        met.append(Met(record, opened_by))
        missed += record.closed_at_s is not None and world.is_in_job(opened_by.trouble)
        if progress is not None:
            progress(min(1.0, now_s / end_s))
        strike = follows or world.strike
    world.stop()
    steps = tuple(seen for seen in world.steps if seen.at_s <= end_s)
    return Run(setting, tuple(met), steps, frozenset(world.guilty), missed, end_s)


def begin(world: World) -> Job:
    """The job as it begins to train."""
    machines = world.first_machines()
    num_slots = world.setting.layout.num_machines
    agenda = Agenda(world, [(0.0, name) for name in machines[num_slots:]])
    codes = memory.with_version(list(EARLIER), FIRST_VERSION, FIRST_VERSION)
    start_s = world.restart_s("start", world.setting.durations.start, 0)
    world.begin(1, machines[:num_slots], FIRST_VERSION, 0, start_s)
    return Job(world, agenda, codes, FIRST_VERSION)


def with_detection(record: IncidentRecord, strike: Strike) -> IncidentRecord:
    """The record with the time from the fault on, which no observer knew of then."""
    mark = Mark(strike.until_s, Spent.DETECT)
    return replace(record, marks=(mark, *record.marks))


def _by_ladder(job: Job, number: int, strike: Strike, now_s: float) -> Recovered:
    recovery = Recovery(job, number, strike, showing.alerts(job.world, strike), now_s)
    follows = recovery.run()
    return recovery.told, follows, recovery.now_s


def _by_habit(job: Job, number: int, strike: Strike, now_s: float) -> Recovered:
    recovery = Naive(job, number, strike, now_s)
    recovery.run()
    return recovery.told, None, recovery.now_s
