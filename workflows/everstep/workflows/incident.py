"""The incident workflow: from an alert back to stable training, one rung at a time.

One round is: let the evidence settle, stop the ranks, say what happened, climb one rung, restart in
place, see a new step. A round that is overtaken by newer evidence (a second machine goes, the
restart fails) gives way to the next one, which starts from everything known by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

from everstep.core import evidence, ladder, names
from everstep.core.model import (
    FROM_THE_BEGINNING,
    Alert,
    Assignment,
    CopyDamaged,
    Finding,
    IncidentRecord,
    MachineInfo,
    MachineReport,
    Observer,
    Outcome,
    RankExit,
    Rung,
    Symptom,
)
from everstep.core.progress import NO_STEP
from everstep.core.restore import RestorePlan, plan_restore
from everstep.workflows import options, restart, storage, story
from everstep.workflows.chronicle import Chronicle
from everstep.workflows.messages import Approval, EvictOrder, IncidentInput, IncidentResult
from everstep.workflows.ports import ClusterPort

T = TypeVar("T")


class OvertakenError(Exception):
    """Newer evidence makes the round under way pointless."""


@workflow.defn(name="ResolveIncident")
class ResolveIncident:
    """Takes one job from an alert back to stable training.

    Signals: `alerts` (more evidence), `machine_joined` (somebody to give a slot to),
    `copy_damaged` (a rank restores from another copy, or cannot), `job_finished`, `approve` (a
    person lets a held incident go on). Query: `record`.
    """

    @workflow.init
    def __init__(self, given: IncidentInput) -> None:
        self._job = given.job
        self._backup = given.job.spec.backup_plan()
        self._run_id = given.run
        self._assignment = given.assignment
        self._pool = list(given.pool)
        self._earlier_evictions = given.evictions
        self._evictions: list[tuple[float, str]] = []
        self._inbox: list[Alert] = list(given.alerts)
        self._round_from = 0
        self._judged = 0
        self._stopped: list[MachineReport] = []
        self._vacant: list[int] = []
        self._evicting: list[str] = []
        self._restarts_without_progress = 0
        self._newest_exit_step: int | None = None
        self._approved = False
        self._job_finished = False
        first = min(given.alerts, key=lambda alert: alert.at_s)
        self._story = Chronicle(
            IncidentRecord(
                incident=given.incident,
                job=given.job.spec.name,
                opened_at_s=workflow.now().timestamp(),
                fault_at_s=first.at_s,
                outcome=Outcome.OPEN,
                finding=Finding(first.symptom, (), (), False, first.detail),
                attempt_before=given.assignment.attempt,
                code_version=given.assignment.code_version,
            )
        )
        self._tell_alerts(given.alerts)

    # --- What comes in ---------------------------------------------------------------------------

    @workflow.signal
    def alerts(self, alerts: list[Alert]) -> None:
        """More evidence, forwarded by the job; that what we evict is gone is none."""
        alerts = [alert for alert in alerts if alert.machine not in self._evicting]
        self._inbox += alerts
        if alerts:
            self._tell_alerts(alerts)

    @workflow.signal
    def machine_joined(self, machine: MachineInfo) -> None:
        """A machine announced itself and waits for a slot."""
        self._pool = [known for known in self._pool if known.machine != machine.machine]
        self._pool.append(machine)
        self._story.tell(f"machine {machine.machine} joined")

    @workflow.signal
    def copy_damaged(self, damaged: CopyDamaged) -> None:
        """A rank could not restore its machine's own copy; agents may say so twice."""
        text = f"attempt {damaged.attempt}: {damaged.detail}"
        if all(entry.text != text for entry in self._story.record.timeline):
            self._story.tell(text, damaged.at_s)

    @workflow.signal
    def job_finished(self) -> None:
        """All ranks of the current attempt ended well."""
        self._job_finished = True

    @workflow.signal
    def approve(self, approval: Approval) -> None:
        """A person lets the incident go on past what holds it."""
        self._approved = True
        note = f" ({approval.note})" if approval.note else ""
        self._story.tell(f"approved by {approval.person}{note}")

    @workflow.query
    def record(self) -> IncidentRecord:
        """The record so far."""
        return self._story.record

    # --- The story -------------------------------------------------------------------------------

    @workflow.run
    async def run(self, given: IncidentInput) -> IncidentResult:
        """Climb until training is stable again."""
        workflow.set_current_details(story.details(self._story.record))
        over = False
        while not over:
            try:
                over = await self._round()
            except OvertakenError:
                continue
        return await self._close()

    async def _round(self) -> bool:
        """One round; true when the incident is over, false when another round is needed."""
        await workflow.sleep(
            timedelta(seconds=self._job.spec.ladder.evidence_window_s),
            summary="let the evidence settle",
        )
        self._round_from = self._judged
        before = self._story.record
        finding = await self._stop_and_classify()
        if self._recovered() and not evidence.same_failure(finding, self._story.record.finding):
            # An incident of its own: what led to it, and how far training had come, is not ours.
            self._judged = self._round_from
            unseen = 0 if before.first_step_at_s is not None else _redone(before)
            self._story.change(
                failed_step=before.failed_step, lost_steps=before.lost_steps + unseen
            )
            return True
        self._story.change(finding=finding, first_step_at_s=None)
        await self._climb(finding)
        if not await self._restart_in_place():
            return False
        return await self._probation()

    async def _stop_and_classify(self) -> Finding:
        """Stop all ranks; the reports of how they ended are the best evidence there is."""
        reports: dict[str, MachineReport] = {}
        silent: list[str] = []

        async def one(info: MachineInfo) -> None:
            task = asyncio.create_task(
                restart.stop(self._job, info, self._assignment.attempt),
            )
            await workflow.wait_condition(lambda: task.done() or self._is_lost(info.machine))
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return
            try:
                reports[info.machine] = await task
            except ActivityError as error:
                silent.append(info.machine)
                self._story.tell(f"{info.machine} did not stop: {restart.why(error)}")

        occupied = [
            info for slot, info in enumerate(self._assignment.slots) if slot not in self._vacant
        ]
        await asyncio.gather(
            *(one(info) for info in occupied if not self._is_lost(info.machine)),
        )
        self._judged = len(self._inbox)
        self._stopped = [reports[i.machine] for i in occupied if i.machine in reports]
        evidence_now = self._inbox[self._round_from :] or self._inbox[-1:]
        exits = _exits_of(self._stopped, evidence_now, self._assignment.attempt)
        self._newest_exit_step = max((e.step for e in exits if e.step is not None), default=None)
        here = [i.machine for i in occupied]
        finding = evidence.classify(
            [a for a in evidence_now if a.symptom is not Symptom.AGENT_LOST or a.machine in here]
            or evidence_now,
            exits,
            sorted(m for m in here if m in silent or self._is_lost(m)),
        )
        newest = [step for report in self._stopped for c in report.copies for step in c.steps]
        if newest:
            self._story.change(failed_step=max(newest))
        self._story.tell(f"all ranks stopped; found {finding.symptom}: {finding.reason}")
        for words in evidence.last_words(finding, exits):
            self._story.tell(words)
        return finding

    async def _climb(self, finding: Finding) -> None:
        """Choose the next rung and do what it asks for, short of the restart that follows each."""
        decision = ladder.next_rung(finding, self._story.record.climbs, self._brake())
        while decision.rung is Rung.PAGE:
            await self._hold(
                f"{decision.reason}. To go on all the same: everstep incident approve "
                f"{self._story.record.incident}",
                lambda: self._approved,
            )
            decision = ladder.next_rung(finding, self._story.record.climbs, self._brake())
        self._approved = False  # it was given for this rung, not for whatever comes after it
        self._story.climbed(finding, decision, self._assignment.attempt)
        if decision.rung is Rung.EVICT:
            await self._evict(decision)

    async def _evict(self, decision: ladder.Decision) -> None:
        self._evicting += decision.machines
        for slot, info in enumerate(self._assignment.slots):
            machine = info.machine
            if machine not in decision.machines or slot in self._vacant:
                continue
            await workflow.execute_activity_method(
                ClusterPort.evict,
                EvictOrder(info, self._story.record.incident, decision.reason),
                **options.EVICT.config(f"evict {machine}: {decision.reason}"),
            )
            self._vacant.append(slot)
            self._evictions.append((workflow.now().timestamp(), machine))
            self._story.tell(f"{machine} is out of slot {slot}")
        self._story.change(evicted=(*self._story.record.evicted, *decision.machines))

    async def _restart_in_place(self) -> bool:
        """Fill the slots, restore, start, and wait for a new step; False when that failed."""
        await self._fill_slots()
        slots = self._assignment.slots
        plan = plan_restore(self._stopped, slots, self._job.spec.layout(), self._backup)
        try:
            source = await self._source(plan)
        except restart.MachinesRefusedError as error:
            self._blame(error)
            return False
        if source.step == FROM_THE_BEGINNING:
            await self._ask_before_starting_over(plan)
        attempt = self._assignment.attempt + 1
        self._assignment = replace(self._assignment, attempt=attempt)
        self._story.change(
            attempt_after=attempt,
            restored_step=source.step,
        )
        await self._tell_job("assigned", self._assignment)
        try:
            if any(plan.pulls.values()):
                await self._unless_overtaken(restart.restore(self._job, self._assignment, plan))
                self._story.tell(
                    f"memory restored to step {plan.step} from other machines: "
                    f"{restart.pulls_text(plan.pulls)}"
                )
            await self._unless_overtaken(
                restart.start(
                    self._job,
                    self._assignment,
                    self._backup,
                    source.step,
                    self._run_id,
                    source.stored,
                )
            )
            self._story.tell(f"attempt {attempt} started from step {source.step}")
            return await self._first_step(source.step + 1)
        except restart.MachinesRefusedError as error:
            self._blame(error)
            return False
        except ActivityError as error:
            self._raise_own(Symptom.JOB_HANG, None, f"no new step: {restart.why(error)}")
        except OvertakenError:
            self._story.tell("overtaken by newer evidence")
        self._restarts_without_progress += 1
        return False

    async def _source(self, plan: RestorePlan) -> storage.Source:
        """Memory's step if there is one, else that of the best checkpoint in storage.

        Raises:
            MachinesRefusedError: A machine did not take part.
            OvertakenError: Newer evidence came.
        """
        if plan.step != FROM_THE_BEGINNING:
            return storage.Source(plan.step)
        if plan.missing:
            self._story.tell(f"no copy left of some shards ({_gone(plan)})")
        coming = replace(self._assignment, attempt=self._assignment.attempt + 1)

        async def from_storage() -> storage.Source:
            tell = self._story.tell
            found = await storage.find(self._job, coming, self._run_id, tell)
            return await storage.bring_back(self._job, coming, found, tell)

        if self._job.spec.checkpoint.storage is None:
            return storage.Source(FROM_THE_BEGINNING)
        if not plan.missing:
            self._story.tell("no machine's memory holds any step")
        source = await self._unless_overtaken(from_storage())
        assert source is not None  # noqa: S101 - nothing was said of a job that finishes
        return source

    async def _ask_before_starting_over(self, plan: RestorePlan) -> None:
        if plan.missing and self._job.spec.checkpoint.when_all_copies_lost == "hold":
            await self._hold(
                f"{_gone(plan)}. To start from what the script itself finds: everstep incident "
                f"approve {self._story.record.incident}",
                lambda: self._approved,
            )

    def _blame(self, error: restart.MachinesRefusedError) -> None:
        for refusal in error.refusals:
            self._raise_own(Symptom.CONTAINER_ERROR, refusal.machine, refusal.reason)
        self._restarts_without_progress += 1

    async def _fill_slots(self) -> None:
        """Give every vacant slot to a machine of the pool; wait for machines where it is empty."""
        lacking = len(self._vacant) - len(self._waiting())
        if lacking > 0:
            slots = restart.ranks_text(self._vacant)
            await self._hold(
                f"{lacking} machine{'s' if lacking > 1 else ''} missing for slot {slots} "
                f"(evicted: {', '.join(self._story.record.evicted)}; no standby is left). "
                f"Add one: everstep machine add",
                lambda: len(self._waiting()) >= len(self._vacant),
            )
        slots_now = list(self._assignment.slots)
        for slot in self._vacant:
            taken = self._waiting()[0]
            self._pool = [known for known in self._pool if known.machine != taken.machine]
            slots_now[slot] = taken
            self._story.tell(f"standby {taken.machine} takes slot {slot}")
            self._story.change(replacements=(*self._story.record.replacements, taken.machine))
        self._vacant = []
        self._assignment = replace(self._assignment, slots=tuple(slots_now))

    async def _first_step(self, step: int) -> bool:
        limit_s = self._job.spec.ladder.first_step_timeout_s
        seen = await self._unless_overtaken(
            restart.await_step(
                self._job,
                self._assignment.attempt,
                step,
                timedelta(seconds=limit_s),
                f"wait for step {step} on all ranks",
            ),
            or_finished=True,
        )
        at_s = workflow.now().timestamp() if seen is None else seen.at_s
        record = self._story.record
        self._story.change(first_step_at_s=at_s, lost_steps=record.lost_steps + _redone(record))
        self._restarts_without_progress = 0
        if seen is None:
            what = "the job finished"
        elif seen.step == NO_STEP:
            what = "all ranks run, and report no steps"
        else:
            what = f"step {step} finished by all ranks"
        self._story.tell(f"{what}: training again", at_s)
        return True

    async def _probation(self) -> bool:
        """Stay until training has proved stable; false when the failure may have come back."""
        policy = self._job.spec.ladder
        await self._story.archive()
        goal = max(self._story.record.failed_step or 0, self._story.record.restored_step or 0)
        goal += policy.probation_steps

        async def stable() -> None:
            await asyncio.gather(
                restart.await_step(
                    self._job,
                    self._assignment.attempt,
                    goal,
                    None,
                    f"probation: wait for step {goal}",
                ),
                workflow.sleep(
                    timedelta(seconds=policy.probation_s), summary="probation: let time pass"
                ),
            )

        try:
            await self._unless_overtaken(stable(), or_finished=True)
        except OvertakenError:
            self._story.tell("failed again during probation")
            return False
        except ActivityError as error:
            self._raise_own(Symptom.JOB_HANG, None, f"no step: {restart.why(error)}")
            return False
        return True

    async def _close(self) -> IncidentResult:
        self._story.closed(
            "closed: another failure begins" if self._overtaken() else "closed: training is stable"
        )
        await self._story.archive()
        result = IncidentResult(
            record=self._story.record,
            assignment=self._assignment,
            evictions=tuple(self._evictions),
            settled=tuple(alert.key for alert in self._inbox[: self._judged]),
        )
        await self._tell_job("incident_closed", result)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return result

    # --- Smaller parts ---------------------------------------------------------------------------

    def _tell_alerts(self, alerts: Sequence[Alert]) -> None:
        """Tell every alert about a machine, and those about ranks that came together in one line.

        Thousands of ranks may end within a second.
        """
        by_time = sorted(alerts, key=lambda alert: alert.at_s)
        for alert in by_time:
            if alert.rank is None:
                self._story.tell(f"{alert.observer}: {alert.detail}", alert.at_s)
        of_ranks = [alert for alert in by_time if alert.rank is not None]
        if of_ranks:
            first, others = of_ranks[0], len(of_ranks) - 1
            more = f" (and {others} more rank{'s' if others > 1 else ''})" if others else ""
            self._story.tell(f"{first.observer}: {first.detail}{more}", first.at_s)

    async def _hold(self, missing: str, satisfied: Callable[[], bool]) -> None:
        """Wait for a person or a machine, saying for what; newer evidence overtakes the wait."""
        if satisfied():
            return
        self._story.held(missing)
        await self._story.archive()
        await workflow.wait_condition(lambda: satisfied() or self._overtaken())
        self._story.goes_on()
        if not satisfied():
            raise OvertakenError

    async def _unless_overtaken(
        self, work: Coroutine[Any, Any, T], or_finished: bool = False
    ) -> T | None:
        """Await work; None when the job finished first; evidence that comes first overtakes it."""
        task = asyncio.create_task(work)
        await workflow.wait_condition(
            lambda: task.done() or self._overtaken() or (or_finished and self._job_finished)
        )
        if task.done():
            return await task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._overtaken():
            raise OvertakenError
        return None

    def _recovered(self) -> bool:
        """Whether this incident's restart brought training forward before it failed.

        The step may not have been seen: whoever waits for it may have been away just then.
        """
        record = self._story.record
        if record.first_step_at_s is not None:
            return True
        if record.restored_step is None or self._newest_exit_step is None:
            return False
        return self._newest_exit_step > record.restored_step

    def _overtaken(self) -> bool:
        return any(self._matters(alert) for alert in self._unsettled())

    def _unsettled(self) -> list[Alert]:
        return self._inbox[self._judged :]

    def _matters(self, alert: Alert) -> bool:
        """Whether an alert concerns what runs now, and not what has been stopped already."""
        if alert.symptom is Symptom.AGENT_LOST or alert.subject:
            here = [
                i.machine for s, i in enumerate(self._assignment.slots) if s not in self._vacant
            ]
            return alert.machine in here
        return alert.attempt == self._assignment.attempt

    def _is_lost(self, machine: str) -> bool:
        return any(a.symptom is Symptom.AGENT_LOST and a.machine == machine for a in self._inbox)

    def _waiting(self) -> list[MachineInfo]:
        """Machines of the pool that may take a slot, in the order in which they joined."""
        return [info for info in self._pool if not self._lost_since_joining(info)]

    def _lost_since_joining(self, info: MachineInfo) -> bool:
        return any(
            a.symptom is Symptom.AGENT_LOST
            and a.machine == info.machine
            and a.at_s >= info.joined_at_s
            for a in self._inbox
        )

    def _brake(self) -> ladder.Brake:
        safety = self._job.spec.safety
        since_s = workflow.now().timestamp() - safety.window_s
        evictions = [*self._earlier_evictions, *self._evictions]
        return ladder.Brake(
            machines=self._job.spec.machines,
            max_evicted_ratio=safety.max_evicted_ratio,
            evicted_in_window=sum(1 for at_s, _ in evictions if at_s >= since_s),
            restarts_without_progress=self._restarts_without_progress,
            max_restarts_without_progress=self._job.spec.ladder.max_restarts_without_progress,
            approved=self._approved,
        )

    def _raise_own(self, symptom: Symptom, machine: str | None, detail: str) -> None:
        """Raise an alert that this workflow observed itself: an order that was not carried out."""
        now_s = workflow.now().timestamp()
        self._inbox.append(
            Alert(Observer.CONTROLLER, symptom, now_s, detail, self._assignment.attempt, machine)
        )
        self._story.tell(f"controller: {detail}", now_s)

    async def _tell_job(self, signal: str, value: Assignment | IncidentResult) -> None:
        """Signal the job; a job that is gone needs no telling."""
        job_id = names.job_workflow_id(self._job.spec.name)
        try:
            await workflow.get_external_workflow_handle(job_id).signal(signal, value)
        except FailureError as error:
            workflow.logger.warning("could not signal %s to %s: %s", signal, job_id, error)


def _gone(plan: RestorePlan) -> str:
    return "; ".join(f"rank {rank}: {text}" for rank, text in sorted(plan.missing.items()))


def _redone(record: IncidentRecord) -> int:
    """Finished steps that the newest restart does again."""
    return max(0, (record.failed_step or 0) - (record.restored_step or 0))


def _exits_of(
    reports: Sequence[MachineReport], alerts: Sequence[Alert], attempt: int
) -> list[RankExit]:
    """Exits of one attempt, from reports and alerts, each rank once (its earliest)."""
    exits = [e for report in reports for e in report.exits]
    exits += [a.rank_exit for a in alerts if a.rank_exit is not None]
    first: dict[int, RankExit] = {}
    for rank_exit in sorted(exits, key=lambda e: (e.at_s, e.rank)):
        if rank_exit.attempt == attempt:
            first.setdefault(rank_exit.rank, rank_exit)
    return list(first.values())
