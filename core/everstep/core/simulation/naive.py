"""What is done without a ladder: restart all through the queue, or stress-test and restart.

Neither inspects machines while training runs, so faults are noticed by time-outs. Both are given
the benefit of Everstep's checkpoints, and of a queue that always has machines and never places a
job on one that is dead; what they lack is knowledge of who it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from everstep.core import memory
from everstep.core.memory import CodeVersion
from everstep.core.record import Climb, Finding, IncidentRecord
from everstep.core.simulation.faults import Cause, Shows
from everstep.core.simulation.recovery import Job
from everstep.core.simulation.setting import Method
from everstep.core.simulation.told import Told
from everstep.core.simulation.world import Strike
from everstep.core.vocabulary import Check, ClimbOutcome, Outcome, Rung, Spent

PATIENCE = 3
"""Times that a fault shows before a person looks into it, as many as Everstep's own default for
restarts without progress."""


class Naive(Told):
    """Takes a simulated job from a failure back to training without asking why.

    Paper: Table 6 (selective stress testing) and Table 7 (requeueing).

    Args:
        job: The job; changed as the incident goes on.
        number: Of the incident.
        strike: What has stopped it.
        now_s: When that was noticed.
    """

    def __init__(self, job: Job, number: int, strike: Strike, now_s: float) -> None:
        self._job, self._world = job, job.world
        self._trouble = strike.trouble
        self._times = job.world.setting.durations
        symptom = strike.trouble.fault.symptom
        record = IncidentRecord(
            incident=number,
            job="simulated",
            opened_at_s=now_s,
            fault_at_s=now_s,
            outcome=Outcome.OPEN,
            finding=Finding(symptom, (), (), False, "training has stopped"),
            attempt_before=job.attempt,
            code_version=job.version,
        )
        super().__init__(job.world.setting, record, now_s)

    def run(self) -> None:
        """Stop, test or not, call a person or not, and start again."""
        self._mark(Spent.LOCATE)
        self._world.stop()
        fault = self._trouble.fault
        if fault.shows is Shows.LOST:
            self._evict(self._present(), Rung.EVICT)
        elif fault.cause is not Cause.WISH:
            testing = self._world.setting.choices.method is Method.STRESS_TEST
            if not (testing and self._tested()):
                self._person_if_it_stays()
        self._restart()

    def _tested(self) -> bool:
        """Whether a stress test names somebody."""
        spread = self._times.stress.get(self._trouble.fault.symptom, self._times.stress_default)
        self.now_s += self._world.takes_s("stress", spread, self._job.attempt)
        slots = self._world.slots
        named = {machine for check in Check for machine in self._world.faulty(check, slots)}
        self._climbed(Rung.CHECKS, sorted(named))
        if named:
            self._evict(sorted(named), Rung.EVICT)
        return bool(named)

    def _person_if_it_stays(self) -> None:
        seen = sum(1 for strike in self._world.struck if strike.trouble is self._trouble)
        if seen < PATIENCE:
            return
        self._mark(Spent.HELD)
        self.now_s += self._world.takes_s("person", self._times.person)
        self._world.mend()
        self._evict(self._present(), Rung.PAGE)

    def _present(self) -> list[str]:
        return [machine for machine in self._trouble.culprits if machine in self._world.slots]

    def _evict(self, machines: Sequence[str], rung: Rung) -> None:
        self._climbed(rung, machines)
        for machine in machines:
            self._world.slots[self._world.slots.index(machine)] = self._world.replacement(machine)[
                0
            ]
        self._change(evicted=(*self.record.evicted, *machines))

    def _restart(self) -> None:
        job, world, record = self._job, self._world, self.record
        testing = world.setting.choices.method is Method.STRESS_TEST
        how = self._times.reschedule if testing else self._times.requeue
        self._mark(Spent.RESTART)
        if self._trouble.fault.cause is Cause.WISH:
            self._climbed(Rung.UPDATE, ())
            job.version = world.wished_version
            job.codes = memory.with_code(job.codes, CodeVersion(job.version, job.version))
        elif not record.evicted:
            self._climbed(Rung.REATTEMPT, ())
        newest, step = world.newest_step(), world.kept_step()
        self.now_s += world.restart_s("naive restart", how, job.attempt)
        job.attempt, job.attempt_from = job.attempt + 1, step
        world.begin(job.attempt, world.slots, job.version, step, self.now_s)
        self._change(
            attempt_after=job.attempt,
            restored_step=step,
            failed_step=newest,
            lost_steps=max(0, newest - step),
            first_step_at_s=world.time_of(step + 1),
            closed_at_s=self.now_s,
            outcome=Outcome.RECOVERED,
            code_version=job.version,
        )

    def _climbed(self, rung: Rung, machines: Sequence[str]) -> None:
        found = rung is Rung.CHECKS and bool(machines)
        outcome = ClimbOutcome.FOUND if found else ClimbOutcome.DONE
        climb = Climb(rung, "", tuple(machines), self._job.attempt, self.now_s, outcome)
        self._change(climbs=(*self.record.climbs, climb))
