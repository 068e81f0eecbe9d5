"""One simulated incident: what `ResolveIncident` does, over a clock that is only counted up.

Every decision is made by the functions that decide in production: what the evidence means, the next
rung, who replays with whom, which version a rollback goes to. What stands here is their order and
what it costs, as the workflow has it; a test runs one stream through both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from everstep.core import evidence, hang, ladder, memory
from everstep.core.memory import CodeVersion
from everstep.core.model import Alert
from everstep.core.record import Climb, Finding, IncidentRecord, StackRecord
from everstep.core.simulation import showing
from everstep.core.simulation.agenda import Agenda, Rejoin
from everstep.core.simulation.testing import Examined, check_all, checked_apart, replay_all
from everstep.core.simulation.told import Told
from everstep.core.simulation.world import Strike, World
from everstep.core.vocabulary import (
    ClimbOutcome,
    Mode,
    Outcome,
    Rung,
    Spent,
    Symptom,
)


@dataclass
class Job:
    """What a job keeps between two incidents.

    Attributes:
        world: The simulated cluster.
        agenda: Machines that will join, and those that wait for a slot.
        codes: Code versions, oldest first.
        version: The one that runs.
        evictions: When which machine was evicted.
        attempt: Number of the newest attempt.
        attempt_from: The step that it began from.
    """

    world: World
    agenda: Agenda
    codes: list[CodeVersion]
    version: str
    evictions: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    attempt: int = 1
    attempt_from: int = 0


class Recovery(Told):
    """Takes a simulated job from an alert back to stable training.

    Args:
        job: The job; changed as the incident goes on.
        number: Of the incident.
        strike: What opened it.
        alerts: What it was seen by.
        now_s: When it opens.
    """

    def __init__(
        self, job: Job, number: int, strike: Strike, alerts: Sequence[Alert], now_s: float
    ) -> None:
        self._job, self._world = job, job.world
        self._setting = job.world.setting
        self._strike: Strike | None = strike
        self._alerts = list(alerts)
        self._vacant: list[int] = []
        self._evicting: list[str] = []
        self._tests: list[Rejoin] = []
        self._updates = 0
        first = min(alerts, key=lambda alert: alert.at_s)
        record = IncidentRecord(
            incident=number,
            job="simulated",
            opened_at_s=now_s,
            fault_at_s=first.at_s,
            outcome=Outcome.OPEN,
            finding=Finding(first.symptom, (), (), False, first.detail),
            attempt_before=job.attempt,
            code_version=job.version,
        )
        super().__init__(self._setting, record, now_s)

    def run(self) -> Strike | None:
        """Climb until training is stable again.

        Returns:
            What the next incident is about, where this one was closed for it; else None.
        """
        while not self._is_over():
            self._mark_evidence()
            before = self.record
            finding = self._find()
            if self._recovered() and not evidence.same_failure(finding, before.finding):
                unseen = 0 if before.first_step_at_s is not None else _redone(before)
                self._change(failed_step=before.failed_step, lost_steps=before.lost_steps + unseen)
                return self._close(self._strike)
            self._change(finding=finding, first_step_at_s=None)
            self._climb(finding)
            self._restart()
            self._strike = self._probation()
            if self._strike is None:
                return self._close(self._settle_tests())
            self._alerts = showing.alerts(self._world, self._world.notice())
        return None

    # --- Evidence ---------------------------------------------------------------------------------

    def _mark_evidence(self) -> None:
        wishes = [a for a in self._alerts if a.symptom is Symptom.CODE_DATA_ADJUSTMENT]
        self._updates = len(wishes)
        self._mark(Spent.DETECT, min(alert.at_s for alert in self._alerts))
        self._mark(Spent.LOCATE)
        self.now_s += self._setting.evidence_window_s

    def _find(self) -> Finding:
        stacks = self._look() if hang.wants_stacks(self._alerts) else None
        lost = self._names_of(Symptom.AGENT_LOST)
        # Where no machine is left, nobody is told to stop.
        if self._world.stop() and not lost.issuperset(self._world.slots):
            times = self._setting.durations
            self.now_s += self._world.restart_s("stop", times.stop, self._job.attempt)
        exits = [alert.rank_exit for alert in self._alerts if alert.rank_exit is not None]
        finding = hang.sharpened(evidence.classify(self._alerts, exits, sorted(lost)), stacks)
        newest = self._world.newest_step()
        self._change(failed_step=max(newest, self._world.kept_step()))
        if newest > self._job.attempt_from:
            self._job.codes = memory.proven(self._job.codes, self._job.version)
        return finding

    def _look(self) -> StackRecord:
        """Both looks at ranks that hang."""
        look = self._setting.durations.look
        for number in range(2):
            self.now_s += self._world.takes_s("look", look, number)
        self.now_s += self._setting.stacks_apart_s
        stacks = hang.stack_record(
            showing.judged(self._world),
            self._world.slots,
            self._setting.layout,
            self.now_s,
            self._job.attempt,
        )
        self._change(stacks=(*self.record.stacks, stacks))
        return stacks

    def _names_of(self, symptom: Symptom) -> set[str]:
        return {
            alert.machine
            for alert in self._alerts
            if alert.symptom is symptom and alert.machine is not None
        }

    def _recovered(self) -> bool:
        return self.record.first_step_at_s is not None

    # --- The ladder -------------------------------------------------------------------------------

    def _climb(self, finding: Finding) -> None:
        approved = False
        while True:
            decision = self._decide(finding, approved)
            if decision.mode is Mode.APPROVE:
                self._ask()
                approved = True
            elif decision.mode is Mode.OBSERVE:
                self._climbed(finding, decision, ClimbOutcome.OBSERVED)
            elif decision.rung in (Rung.CHECKS, Rung.REPLAY):
                approved = False
                found = self._examine(decision.rung, finding)
                told = replace(decision, machines=found.machines)
                self._climbed(finding, told, found.outcome)
            else:
                self._climbed(finding, decision, ClimbOutcome.DONE)
                self._perform(finding, decision)
                return

    def _decide(self, finding: Finding, approved: bool) -> ladder.Decision:
        setting, codes = self._setting, self._job.codes
        unavailable = dict(setting.unavailable)
        if memory.rollback_target(codes, self._job.version) is None:
            unavailable[Rung.ROLLBACK] = "no earlier code version is known"
        since_s = self.now_s - setting.window_s
        running = memory.version_of(codes, self._job.version)
        standing = ladder.Standing(
            evicted_in_window=sum(1 for at_s, _ in self._job.evictions if at_s >= since_s),
            code_proven=running is None or running.proven,
            unavailable=unavailable,
            approved=approved,
            updates=self._updates,
            returned=self.record.returned,
        )
        climbs = self.record.climbs
        if setting.choices.retry_first and not climbs and not self._updates:
            return ladder.Decision(Rung.REATTEMPT, (), "the policy tries again first")
        return ladder.next_rung(finding, climbs, setting.policy, standing)

    def _climbed(self, finding: Finding, decision: ladder.Decision, outcome: ClimbOutcome) -> None:
        climb = Climb(
            decision.rung,
            decision.reason,
            decision.machines,
            self._job.attempt,
            self.now_s,
            outcome,
            finding.symptom,
            finding.machines,
        )
        self._change(climbs=(*self.record.climbs, climb))

    def _ask(self) -> None:
        """A person is called, finds the cause, mends it, and lets the incident go on."""
        self._mark(Spent.HELD)
        self.now_s += self._world.takes_s("person", self._setting.durations.person)
        self._world.mend()
        self._mark(Spent.LOCATE)

    def _examine(self, rung: Rung, finding: Finding) -> Examined:
        if rung is Rung.REPLAY:
            found = replay_all(self._world)
        else:
            occupied = [m for slot, m in enumerate(self._world.slots) if slot not in self._vacant]
            found = check_all(self._world, occupied, finding.symptom)
        self.now_s += found.took_s
        return found

    def _perform(self, finding: Finding, decision: ladder.Decision) -> None:
        if decision.rung is Rung.EVICT:
            self._evict(finding, decision)
        elif decision.rung is Rung.ROLLBACK:
            target = memory.rollback_target(self._job.codes, self._job.version)
            assert target is not None  # noqa: S101 - else the rung had been unavailable
            self._job.codes = memory.failed(self._job.codes, self._job.version, decision.reason)
            self._job.version = target.version

    def _evict(self, finding: Finding, decision: ladder.Decision) -> None:
        apart: list[str] = []
        for slot, machine in enumerate(self._world.slots):
            if machine not in decision.machines or slot in self._vacant:
                continue
            if machine in finding.group_only and machine not in self.record.returned:
                apart.append(machine)
            else:
                self._job.agenda.order(machine, self.now_s)
            self._vacant.append(slot)
            self._job.evictions.append((self.now_s, machine))
        self._change(evicted=(*self.record.evicted, *decision.machines))
        if apart:
            # While the job goes on without them.
            self._tests.append(checked_apart(self._world, apart, self.now_s))

    # --- The restart ------------------------------------------------------------------------------

    def _restart(self) -> None:
        job, world, times = self._job, self._world, self._setting.durations
        slots = self._fill_slots()
        step = self._step_in_memory(slots)
        in_memory = step > 0
        if not in_memory:
            step = self._step_in_storage()
        self._mark(Spent.RESTART)
        if self._updates:
            self._updates = 0
            job.version = world.wished_version
            job.codes = memory.with_code(job.codes, CodeVersion(job.version, job.version))
        if in_memory and slots != world.slots:
            self.now_s += world.restart_s("restore", times.restore, job.attempt)
        self._change(attempt_after=job.attempt + 1, restored_step=step, code_version=job.version)
        self.now_s += world.restart_s("start", times.start, job.attempt)
        job.attempt, job.attempt_from = job.attempt + 1, step
        world.begin(job.attempt, slots, job.version, step, self.now_s)
        # Nothing strikes before the first step, unless the job's days are over.
        self.now_s = seen_s = self.now_s + times.step_s
        self._change(
            first_step_at_s=seen_s, lost_steps=self.record.lost_steps + _redone(self.record)
        )
        job.codes = memory.proven(job.codes, job.version)

    def _step_in_memory(self, slots: Sequence[str]) -> int:
        """The step that all ranks can get from these machines, by slot; 0 when there is none."""
        world, setting, there = self._world, self._setting, {*slots}
        # Whoever comes back after its tests still has what it had.
        gone = [slot for slot, machine in enumerate(world.slots) if machine not in there]
        return 0 if setting.backup.lost_with(setting.layout, gone) else world.kept_step()

    def _step_in_storage(self) -> int:
        """The step that storage has, once it is read; 0 when there is none."""
        step = self._world.stored_step
        if step:
            storage = self._setting.durations.restore_from_storage
            self.now_s += self._world.takes_s("storage", storage)
        return step

    def _fill_slots(self) -> list[str]:
        agenda, needed = self._job.agenda, len(self._vacant)
        slots = list(self._world.slots)
        if agenda.waiting_at(self.now_s) < needed:
            self._tested_until(needed)
        if agenda.waiting_at(self.now_s) < needed:
            self._mark(Spent.HELD)
            self.now_s = agenda.when(needed, self.now_s)
            self._mark(Spent.LOCATE)
        for slot in self._vacant:
            slots[slot] = agenda.take(self.now_s)
            self._change(replacements=(*self.record.replacements, slots[slot]))
        self._vacant = []
        return slots

    def _tested_until(self, needed: int) -> None:
        """Wait for tests to give machines back, before a person is called."""
        agenda = self._job.agenda
        for test in sorted(self._tests, key=lambda one: one.at_s):
            enough_s = agenda.when(needed, self.now_s)
            if enough_s <= test.at_s:
                self.now_s = max(self.now_s, enough_s)
                return
            self.now_s = max(self.now_s, test.at_s)
            self._tests.remove(test)
            self._told(test)

    def _told(self, test: Rejoin) -> None:
        """A test is over: who passes waits for a slot again, who fails goes for good."""
        for machine in test.machines:
            if machine in test.failed:
                self._job.agenda.order(machine, test.at_s)
            else:
                self._job.agenda.put(machine, test.at_s)
                self._change(returned=(*self.record.returned, machine))

    # --- The end ----------------------------------------------------------------------------------

    def _probation(self) -> Strike | None:
        """Stay until training is stable: None; or until it has failed again: what did that."""
        record, setting = self.record, self._setting
        goal = max(record.failed_step or 0, record.restored_step or 0) + setting.probation_steps
        reached_s, strike = self._world.time_of(goal), self._world.strike
        if reached_s is not None:
            stable_s = max(reached_s, self.now_s + setting.probation_s)
            if strike is None or stable_s < strike.alert_at_s:
                self.now_s = stable_s
                return None
        if strike is None:
            # The job's time is over before.
            self.now_s += setting.probation_s
            return None
        self.now_s = strike.alert_at_s
        return strike

    def _settle_tests(self) -> Strike | None:
        """Wait for all tests; what strikes before they are over cuts them off."""
        strike = self._world.strike
        for test in sorted(self._tests, key=lambda one: one.at_s):
            if strike is not None and strike.alert_at_s <= test.at_s:
                self.now_s = max(self.now_s, strike.alert_at_s)
                return strike
            self.now_s = max(self.now_s, test.at_s)
            self._tests.remove(test)
            self._told(test)
        return None

    def _close(self, strike: Strike | None) -> Strike | None:
        for test in self._tests:
            cut_off = test.at_s > self.now_s
            failed = frozenset(test.machines) if cut_off else test.failed
            self._told(Rejoin(min(test.at_s, self.now_s), test.machines, failed))
        self._change(outcome=Outcome.RECOVERED, closed_at_s=self.now_s)
        return strike


def _redone(record: IncidentRecord) -> int:
    return max(0, (record.failed_step or 0) - (record.restored_step or 0))
