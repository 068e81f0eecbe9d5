"""The job workflow: one entity for the job's whole life, through continue-as-new.

It keeps who holds which slot, takes in alerts and drops duplicates, and opens one incident at a
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, FailureError

from everstep.core import evidence, memory, names, updates
from everstep.core.model import Alert, Assignment, CopyDamaged, MachineInfo, RanksFinished
from everstep.core.record import TimelineEntry
from everstep.core.vocabulary import Symptom
from everstep.workflows import asking, first_start, options, ordering, story
from everstep.workflows.first_start import own_alert
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.messages import (
    Eviction,
    IncidentInput,
    IncidentResult,
    JobInput,
    JobResult,
    JobState,
    JobStatus,
    TestedMachine,
)
from everstep.workflows.remembering import bar, remember, remember_eviction
from everstep.workflows.standbys import Standbys
from everstep.workflows.update_desk import Told, UpdateDesk

MAX_RECENT_KEYS = 3_000
"""Alerts remembered for dropping duplicates: a whole job's ranks ending at the paper's scale of
machines fits, gathered by machine (the first, and what ended while that was on its way)."""

MAX_NOTED = 50
"""Alerts that stop nothing, kept for whoever asks."""

MAX_NOTES = 20


@workflow.defn(name="RunJob")
class RunJob(UpdateDesk):
    """Runs one job from its first start to the end of its last rank.

    Signals: `report_alerts`, `machine_joined`, `ranks_finished`, `copy_damaged` (from agents and
    the analyzer), `assigned`, `machine_evicted`, `machine_tested`, `updates_made`,
    `updates_undone`, `updates_heard`, `incident_closed` (from the open incident), `admit`,
    `push_update` (from a person). Updates: `hot_update`, `cancel_update`. Query: `status`.
    """

    @workflow.init
    def __init__(self, job: JobInput, state: JobState | None = None) -> None:
        super().__init__(job, state or JobState())
        self._listening = self._state.active
        self._awaited_s: float | None = None
        self._asks_cluster = False
        self._showing: asyncio.Task[None] | None = None

        async def on_ready(machine: MachineInfo) -> None:
            await self._tell_incident("machine_joined", machine)

        self._standbys = Standbys(job, self._state, self._note, on_ready)
        if not self._state.codes:
            self._state.codes = list(job.earlier_code)
            self._state.codes = memory.with_version(
                self._state.codes, job.code_version, job.code_directory
            )

    # --- What comes in ---------------------------------------------------------------------------

    @workflow.signal
    def report_alerts(self, alerts: list[Alert]) -> None:
        """Evidence from an observer; duplicates and what concerns older attempts are dropped."""
        known = set(self._state.recent_keys)
        for alert in alerts:
            if alert.key in known or not self._concerns_us(alert):
                continue
            known.add(alert.key)
            self._state.recent_keys = [*self._state.recent_keys, alert.key][-MAX_RECENT_KEYS:]
            if evidence.calls_for_action(alert):
                self._state.pending.append(alert)
            else:
                self._state.noted = [*self._state.noted, alert][-MAX_NOTED:]
                workflow.logger.warning("noted: %s: %s", alert.machine or "job", alert.detail)

    @workflow.signal
    async def machine_joined(self, machine: MachineInfo) -> None:
        """A machine's agent is ready; repeated by agents after every reconnection."""
        for held in self._slots():
            if held.machine == machine.machine and held.machine not in self._state.out:
                if held.agent_pid != machine.agent_pid:
                    self.report_alerts([_replaced(held, machine)])
                return
        if machine in self._state.pool or machine in self._state.arriving:
            return
        if machine in self._state.in_test:
            # The open incident will say what comes of it.
            return
        if memory.barred(memory.history_of(self._state.machines, machine.machine)):
            bar(self._state, machine)
            workflow.logger.warning("%s was evicted too often to join by itself", machine.machine)
            return
        # What was said of an earlier agent of this name is no duplicate of what is said of this
        # one.
        self._state.recent_keys = [
            key for key in self._state.recent_keys if f"/{machine.machine}/" not in key
        ]
        await self._standbys.arrive(machine)

    @workflow.signal
    async def admit(self, name: str) -> None:
        """A person lets a machine join that was evicted too often for its own word to count."""
        self._state.machines = memory.after_admission(self._state.machines, name)
        waiting = [machine for machine in self._state.barred if machine.machine == name]
        self._state.barred = [m for m in self._state.barred if m.machine != name]
        for machine in waiting:
            await self.machine_joined(machine)
        if self._asks_cluster:
            await self._release(name)

    @workflow.signal
    async def ranks_finished(self, finished: RanksFinished) -> None:
        """All ranks of one machine ended well."""
        assignment = self._state.assignment
        if assignment is None or finished.attempt != assignment.attempt:
            return
        if finished.machine not in self._state.finished:
            self._state.finished.append(finished.machine)
        if self._all_finished():
            await self._tell_incident("job_finished", None)

    @workflow.signal
    async def copy_damaged(self, damaged: CopyDamaged) -> None:
        """A rank's own copy was of no use to it: the recovery under way tells why."""
        workflow.logger.warning("%s", damaged.detail)
        await self._tell_incident("copy_damaged", damaged)

    @workflow.signal
    def assigned(self, assignment: Assignment) -> None:
        """The open incident is about to start a new attempt."""
        self._state.assignment = assignment
        self._state.finished, self._state.out = [], []
        held = assignment.machine_names()
        self._state.pool = [k for k in self._state.pool if k.machine not in held]

    @workflow.signal
    def standby_refused(self, name: str) -> None:
        """The cluster minds a standby: it is none, until its agent joins anew."""
        self._state.pool = [known for known in self._state.pool if known.machine != name]

    @workflow.signal
    def machine_evicted(self, eviction: Eviction) -> None:
        """The open incident has taken a machine out."""
        remember_eviction(self._state, eviction)
        self._state.out.append(eviction.machine)
        if eviction.tested:
            self._state.in_test += [i for i in self._slots() if i.machine == eviction.machine]

    @workflow.signal
    def machine_tested(self, tested: TestedMachine) -> None:
        """A machine that was evicted for its group alone was tested."""
        name = tested.machine.machine
        cleared = tested.healthy and not tested.suspected
        self._state.in_test = [info for info in self._state.in_test if info.machine != name]
        self._state.machines = memory.after_tests(
            self._state.machines, name, cleared, tested.finding
        )
        # An agent that was started anew meanwhile has joined by itself.
        if tested.healthy and all(known.machine != name for known in self._state.pool):
            self._state.pool.append(tested.machine)

    @workflow.signal
    def incident_closed(self, result: IncidentResult) -> None:
        """The open incident is over; what it hands back becomes the job's state."""
        if self._state.active != result.record.incident:
            return
        self._state.active = self._listening = None
        self._show()
        self._state.out = []
        self._state.assignment = result.assignment or self._state.assignment
        self._state.evictions = [*self._state.evictions, *result.evictions]
        remember(self._state, result, workflow.now().timestamp())
        self._state.in_test = []
        if result.record.restored_step is None:
            # The attempt goes on: what was said of it may come true again.
            keys = self._state.recent_keys
            self._state.recent_keys = [key for key in keys if key not in result.settled]
        unsettled = [alert for alert in self._state.handed if alert.key not in result.settled]
        self._state.pending = [*unsettled, *self._state.pending]
        self._state.handed = []

    @workflow.query
    def status(self) -> JobStatus:
        """Who holds which slot, and whether an incident is open."""
        return replace(self._standing(), standbys=self._standbys.status())

    def _standing(self) -> JobStatus:
        """The same but for how many standbys there should be, which takes its time to compute."""
        return JobStatus(
            job=self._job.spec.name,
            phase=self._phase(),
            assignment=self._state.assignment,
            pool=tuple(self._state.pool),
            evicted=tuple(machine for _, machine in self._state.evictions),
            incidents=self._state.incidents - (1 if self._opening() else 0),
            active_incident=self._listening,
            barred=tuple(machine.machine for machine in self._state.barred),
            machines=tuple(self._state.machines),
            codes=tuple(self._state.codes),
            noted=tuple(self._state.noted),
            notes=tuple(self._state.notes),
            updates=tuple(self._state.updates),
            started_at_s=self._state.started_at_s,
        )

    # --- The life of a job -----------------------------------------------------------------------

    @workflow.run
    async def run(self, job: JobInput, state: JobState | None = None) -> JobResult:
        """Start the job and see it through to its end."""
        self._asks_cluster = workflow.patched("asks-cluster")
        self._care = asyncio.create_task(self._standbys.run())
        if self._state.assignment is None:
            await first_start.gather(self._job, self._state, self._standbys, self._asks_cluster)
            await self._first_start()
        while not (self._all_finished() and self._state.active is None):
            self._show()
            await self._wait_for_something_to_do()
            if self._state.pending and self._state.active is None:
                await self._open_incident()
            elif self._state.pending:
                await self._forward_pending()
            elif due := self._due_updates():
                self._state.pending.append(self._call_for(due[0]))
            elif self._should_continue_as_new():
                await self._settle()
                workflow.continue_as_new(args=[self._job, self._state])
        await self._settle()
        assignment = self._state.assignment
        assert assignment is not None  # noqa: S101 - the first start made it
        return JobResult(
            job=job.spec.name,
            attempts=assignment.attempt,
            incidents=self._state.incidents,
            started_at_s=self._state.started_at_s or 0.0,
            finished_at_s=workflow.now().timestamp(),
        )

    async def _settle(self) -> None:
        """Leave nothing half-done to whoever comes next."""
        self._care.cancel()
        await self._standbys.settle()
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _first_start(self) -> None:
        """Start attempt 1; what cannot start is the first incident's alert."""
        assignment = self._state.assignment
        assert assignment is not None  # noqa: S101 - gathered by the only caller just before
        self._state.started_at_s = self._state.attempt_at_s = workflow.now().timestamp()
        if self._asks_cluster:
            self._showing = asyncio.create_task(asking.show_slots(self._job.spec, assignment))
        self.report_alerts(await first_start.begin(self._job, assignment, self._run_id, self._note))

    async def _open_incident(self) -> None:
        assignment = self._state.assignment
        assert assignment is not None  # noqa: S101 - alerts are taken only after the first start
        # What an incident did not settle may be about what it has replaced in the meantime.
        alerts = tuple(alert for alert in self._state.pending if self._concerns_us(alert))
        self._state.pending = []
        if not alerts:
            return
        self._standbys.release()
        self._state.incidents += 1
        self._state.active = self._state.incidents
        self._state.handed = list(alerts)
        first = min(alerts, key=lambda alert: alert.at_s)
        job = self._job.spec.name
        await workflow.start_child_workflow(
            ResolveIncident.run,
            IncidentInput(
                job=self._job,
                incident=self._state.incidents,
                alerts=alerts,
                assignment=assignment,
                pool=tuple(self._state.pool),
                evictions=self._counted_evictions(),
                run=self._run_id,
                codes=tuple(self._state.codes),
                attempt_from=self._state.attempt_from,
                attempt_at_s=self._state.attempt_at_s,
                updates=updates.pending(self._state.updates),
                remembers=True,
            ),
            id=names.incident_workflow_id(job, self._state.incidents),
            task_timeout=options.workflow_task_timeout(self._job.spec.machines),
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            # A later job of this name counts from 1 again; one that is open is never doubled.
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            search_attributes=story.incident_attributes(job, first.symptom),
            static_summary=f"{job}, incident {self._state.incidents}: {first.detail}"[
                : options.MAX_SUMMARY_CHARS
            ],
        )
        self._listening = self._state.active
        self._show()

    def _counted_evictions(self) -> tuple[tuple[float, str], ...]:
        """Those that a brake may still count: a job of months has had hundreds."""
        since_s = workflow.now().timestamp() - self._job.spec.safety.window_s
        return tuple(one for one in self._state.evictions if one[0] >= since_s)

    async def _release(self, machine: str) -> None:
        """What a person admits may be used again; where nobody can say so, a person has to."""
        try:
            await asking.release_machine(self._job.spec.name, machine)
        except ActivityError as error:
            self._note(f"{machine} is admitted, and still in quarantine: {ordering.why(error)}")

    async def _forward_pending(self) -> None:
        alerts, self._state.pending = self._state.pending, []
        self._state.handed += alerts
        await self._tell_incident("alerts", alerts)

    async def _tell_incident(self, signal: str, value: Told) -> None:
        """Signal the open incident, if there is one that still listens."""
        await workflow.wait_condition(lambda: not self._opening())
        if self._state.active is None:
            return
        incident_id = names.incident_workflow_id(self._job.spec.name, self._state.active)
        handle = workflow.get_external_workflow_handle(incident_id)
        try:
            await handle.signal(signal, args=[] if value is None else [value])
        except FailureError as error:
            # It is over, and says so any moment; alerts that it did not settle open the next one.
            workflow.logger.warning("could not signal %s to %s: %s", signal, incident_id, error)

    def _note(self, text: str, at_s: float | None = None) -> None:
        workflow.logger.warning("noted: %s", text)
        now_s = workflow.now().timestamp()
        entry = TimelineEntry(now_s if at_s is None else at_s, text)
        self._state.notes = [*self._state.notes, entry][-MAX_NOTES:]
        self._show()

    def _show(self) -> None:
        """Let Temporal's web UI show how the job stands."""
        workflow.set_current_details(story.job_details(self._standing()))

    # --- Questions about the state ---------------------------------------------------------------

    @property
    def _run_id(self) -> str:
        return workflow.info().first_execution_run_id

    def _slots(self) -> Sequence[MachineInfo]:
        return () if self._state.assignment is None else self._state.assignment.slots

    def _concerns_us(self, alert: Alert) -> bool:
        """Whether an alert is about what the job has now; a bad standby just leaves the pool."""
        if alert.symptom is Symptom.AGENT_LOST:
            self._standbys.gone(alert.machine, alert.at_s)
            return self._holds_slot(alert.machine) or self._state.active is not None
        if alert.subject and not alert.attempt:
            if alert.confident:
                self._standbys.gone(alert.machine)
            return self._holds_slot(alert.machine)
        if self._state.assignment is None:
            return False
        return alert.attempt >= self._state.assignment.attempt

    def _holds_slot(self, machine: str | None) -> bool:
        return any(info.machine == machine for info in self._slots())

    def _opening(self) -> bool:
        """Whether an incident has been numbered but does not listen yet."""
        return self._state.active != self._listening

    def _all_finished(self) -> bool:
        slots, finished = self._slots(), set(self._state.finished)
        return bool(slots) and all(info.machine in finished for info in slots)

    async def _wait_for_something_to_do(self) -> None:
        """Wait for alerts, the job's end, or the end of an update's window."""
        self._awaited_s = self._next_due_s()
        timeout = None
        if self._awaited_s is not None:
            timeout = timedelta(seconds=max(0.0, self._awaited_s - workflow.now().timestamp()))
        try:
            await workflow.wait_condition(
                self._something_to_do, timeout=timeout, timeout_summary="wait for an update's time"
            )
        except TimeoutError:
            workflow.logger.info("an update's window is over")

    def _something_to_do(self) -> bool:
        if self._state.pending or self._should_continue_as_new():
            return True
        if self._care.done() and (failed := self._care.exception()) is not None:
            raise failed
        if self._next_due_s() != self._awaited_s:
            return True
        return self._all_finished() and self._state.active is None

    def _should_continue_as_new(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() > self._job.max_events
        )

    def _phase(self) -> str:
        if self._state.assignment is None:
            return "gathering machines"
        if self._state.active is not None:
            return f"incident {self._state.active} open"
        return "finished" if self._all_finished() else "training"


def _replaced(old: MachineInfo, new: MachineInfo) -> Alert:
    """An agent that was started anew has lost its ranks and its memory: the old one is gone."""
    return replace(
        own_alert(
            Symptom.AGENT_LOST,
            0,
            old.machine,
            f"agent of {old.machine} started anew (process {old.agent_pid} -> {new.agent_pid})",
        )
    )
