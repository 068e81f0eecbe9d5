"""The incident workflow: from an alert back to stable training, one rung at a time.

One round is: let the evidence settle, ask ranks that hang where they stand, stop the ranks, say
what happened, climb, restart in place, see a new step. A round that is overtaken by newer evidence
(a second machine goes, the restart fails) gives way to the next one, which starts from everything
known by then.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core import evidence, memory
from everstep.core.model import Alert, CopyDamaged, MachineInfo
from everstep.core.record import IncidentRecord
from everstep.core.updates import Update, UpdateState, pending
from everstep.core.vocabulary import Symptom
from everstep.workflows import asking, ordering, restart, story
from everstep.workflows.in_place import redone, restart_in_place
from everstep.workflows.locating import locate, went_on
from everstep.workflows.messages import (
    Approval,
    Decision,
    IncidentInput,
    IncidentResult,
    UpdatesHeard,
)
from everstep.workflows.returning import settle_tests
from everstep.workflows.rungs import climb
from everstep.workflows.situation import OvertakenError, Situation
from everstep.workflows.stopping import stop_and_classify


@workflow.defn(name="ResolveIncident")
class ResolveIncident:
    """Takes one job from an alert back to stable training.

    Signals: `alerts` (more evidence), `machine_joined` (somebody to give a slot to),
    `copy_damaged` (a rank restores from another copy, or cannot), `job_finished`, `updates`
    (changes that the next restart makes), `approve` and `deny` (a person's word on what holds it).
    Update: `decide` (the same, answered). Query: `record`.
    """

    @workflow.init
    def __init__(self, given: IncidentInput) -> None:
        self._now = Situation(given)

    # --- What comes in ---------------------------------------------------------------------------

    @workflow.signal
    def alerts(self, alerts: list[Alert]) -> None:
        """More evidence, forwarded by the job; that what we evict is gone is none."""
        alerts = [alert for alert in alerts if alert.machine not in self._now.evicting]
        self._now.inbox.take(alerts)
        if alerts:
            self._now.tell_alerts(alerts)

    @workflow.signal
    def machine_joined(self, machine: MachineInfo) -> None:
        """A machine announced itself and waits for a slot."""
        self._now.pool = [known for known in self._now.pool if known.machine != machine.machine]
        self._now.pool.append(machine)
        self._now.story.tell(f"machine {machine.machine} joined")

    @workflow.signal
    def copy_damaged(self, damaged: CopyDamaged) -> None:
        """A rank could not restore its machine's own copy; agents may say so twice."""
        text = f"attempt {damaged.attempt}: {damaged.detail}"
        if all(entry.text != text for entry in self._now.record.timeline):
            self._now.story.tell(text, damaged.at_s)

    @workflow.signal
    def job_finished(self) -> None:
        """All ranks of the current attempt ended well."""
        self._now.job_finished = True

    @workflow.signal
    def approve(self, approval: Approval) -> None:
        """A person lets the incident go on past what holds it."""
        self._now.answer(True, approval.person, approval.note)

    @workflow.signal
    def deny(self, denial: Approval) -> None:
        """A person says no to the rung that the incident asks for; the next one is tried."""
        self._now.answer(False, denial.person, denial.note)

    @workflow.update
    def decide(self, decision: Decision) -> None:
        """A person's answer, which counts or is refused: for whoever wants to know which."""
        self._now.answer(decision.yes, decision.person, decision.note)

    @decide.validator
    def _may_decide(self, decision: Decision) -> None:
        """Refuse what comes too late, or is an answer to another question.

        Raises:
            InputError: It does not count.
        """
        if (objection := self._now.objection(decision)) is not None:
            raise objection

    @workflow.signal
    async def updates(self, updates: list[Update]) -> None:
        """The changes that wait for a restart, as they stand now, and one that was withdrawn."""
        unmade = [one for one in updates if one.number not in self._now.updates_made]
        self._now.updates = pending(unmade)
        withdrawn = tuple(one.number for one in unmade if one.state is UpdateState.CANCELLED)
        if withdrawn and workflow.patched("updates-heard"):
            await self._now.tell_job("updates_heard", UpdatesHeard(withdrawn))

    @workflow.query
    def record(self) -> IncidentRecord:
        """The record so far."""
        return self._now.record

    # --- The story -------------------------------------------------------------------------------

    @workflow.run
    async def run(self, given: IncidentInput) -> IncidentResult:
        """Climb until training is stable again."""
        workflow.set_current_details(story.details(self._now.record))
        self._now.whole_ladder = workflow.patched("whole-ladder")
        self._now.takes_advice = workflow.patched("first-action")
        self._now.asks_cluster = workflow.patched("asks-cluster")
        self._now.pages.tells_all = workflow.patched("notices")
        self._now.pages.opened()
        over = False
        while not over:
            try:
                over = await self._round()
            except OvertakenError:
                continue
        return await self._close()

    async def _round(self) -> bool:
        """One round; true when the incident is over, false when another round is needed."""
        now = self._now
        now.mark_evidence()
        await workflow.sleep(
            timedelta(seconds=now.job.spec.ladder.evidence_window_s),
            summary="let the evidence settle",
        )
        now.inbox.begin_round()
        stacks = await locate(now)
        if stacks is not None and await went_on(now, stacks):
            return True
        before = now.record
        finding = await stop_and_classify(now, stacks)
        another = not evidence.same_failure(finding, before.finding)
        # An eviction that is asked for is asked here, whatever comes.
        if another and self._recovered() and not now.inbox.kept:
            self._leave_to_another(before)
            return True
        now.story.found(finding)
        await climb(now, finding)
        if not await restart_in_place(now):
            return False
        now.codes = memory.proven(now.codes, now.assignment.code_version)
        return await self._probation()

    def _leave_to_another(self, before: IncidentRecord) -> None:
        """What failed is an incident of its own: what led to it, and how far training was, too."""
        self._now.inbox.give_back_round()
        unseen = 0 if before.first_step_at_s is not None else redone(before)
        self._now.story.change(
            failed_step=before.failed_step, lost_steps=before.lost_steps + unseen
        )

    def _recovered(self) -> bool:
        """Whether this incident's restart brought training forward before it failed.

        The step may not have been seen: whoever waits for it may have been away just then.
        """
        record, newest = self._now.record, self._now.newest_exit_step
        if record.first_step_at_s is not None:
            return True
        if record.restored_step is None or newest is None:
            return False
        return newest > record.restored_step

    async def _probation(self) -> bool:
        """Stay until training has proved stable; false when the failure may have come back."""
        now, job = self._now, self._now.job
        await now.story.archive()
        goal = max(now.record.failed_step or 0, now.record.restored_step or 0)
        goal += job.spec.ladder.probation_steps

        async def stable() -> None:
            await asyncio.gather(
                restart.await_step(
                    now.job,
                    now.assignment.attempt,
                    goal,
                    None,
                    f"probation: wait for step {goal}",
                ),
                workflow.sleep(
                    timedelta(seconds=job.spec.probation_s()), summary="probation: let time pass"
                ),
            )

        try:
            await now.unless_overtaken(stable(), or_finished=True)
        except OvertakenError:
            now.story.tell(
                "stopped for a change during probation"
                if now.only_asked()
                else "failed again during probation"
            )
            return False
        except ActivityError as error:
            now.raise_own(Symptom.JOB_HANG, None, f"no step: {ordering.why(error)}")
            return False
        return True

    async def _close(self) -> IncidentResult:
        now = self._now
        await settle_tests(now)
        await asking.settle(now)
        why = "another failure begins" if now.overtaken() else "training is stable"
        now.story.closed(f"closed: {'a change is made' if now.only_asked() else why}")
        now.pages.drop()
        now.pages.closed(story.summary(now.record))
        await now.story.archive()
        known = now.given.remembers and now.assignment == now.told
        result = IncidentResult(
            record=now.record,
            assignment=None if known else now.assignment,
            evictions=tuple(now.evictions),
            settled=now.inbox.settled_keys(),
            codes=tuple(now.codes),
        )
        await now.tell_job("incident_closed", result)
        if now.pages.tells_all:
            await now.pages.settle()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return result
