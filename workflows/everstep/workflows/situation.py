"""What the parts of an incident share: who holds which slot, what is known, and how to wait.

Made by the incident workflow and handed to `stopping`, `rungs`, `checking`, `replaying` and
`in_place`. Lives inside a workflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import FailureError

from everstep.core import ladder, memory, names
from everstep.core.errors import InputError
from everstep.core.model import Alert, Assignment, MachineInfo
from everstep.core.orders import MachineReport
from everstep.core.record import Finding, IncidentRecord
from everstep.core.vocabulary import Notice, Observer, Outcome, Rung, Spent, Symptom
from everstep.workflows import paging
from everstep.workflows.chronicle import Chronicle
from everstep.workflows.inbox import Inbox
from everstep.workflows.messages import (
    Decision,
    Eviction,
    IncidentInput,
    IncidentResult,
    TestedMachine,
    UpdatesHeard,
    UpdatesMade,
    UpdatesUndone,
)

T = TypeVar("T")

MAX_TOLD = 20
"""Lines of a story about what came at once."""


class OvertakenError(Exception):
    """Newer evidence makes the round under way pointless."""


class Situation:
    """How one incident stands.

    Args:
        given: What the incident was opened with.
    """

    def __init__(self, given: IncidentInput) -> None:
        first = min(given.alerts, key=lambda alert: alert.at_s)
        self.given = given
        self.job = given.job
        self.backup = given.job.spec.backup_plan()
        self.assignment = self.told = given.assignment
        self.pool = list(given.pool)
        self.codes = list(given.codes)
        self.updates = given.updates
        self.updates_made: tuple[int, ...] = ()
        self.inbox = Inbox(given.alerts)
        self.evictions: list[tuple[float, str]] = []
        self.stopped: list[MachineReport] = []
        self.stopped_attempt = 0
        """Whose ranks `stopped` tells of; 0 in incidents that heard what ranks said after that."""
        self.vacant: list[int] = []
        self.evicting: list[str] = []
        self.in_test: dict[str, tuple[MachineInfo, bool]] = {}
        """Evicted machines under test, each with whether a rank of its own stood out."""
        self.tests: list[asyncio.Task[None]] = []
        self.chores: list[asyncio.Task[None]] = []
        """What the cluster was asked for, and nothing waits for."""
        self.quarantining: dict[str, asyncio.Task[None]] = {}
        """Those of them that must be over before the machine's quarantine is undone."""
        self.showing: asyncio.Task[None] | None = None
        self.asks_cluster = True
        """False in incidents that were opened before the cluster was told more than to evict."""
        self.restarts_without_progress = 0
        self.newest_exit_step: int | None = None
        self.job_finished = False
        self.whole_ladder = True
        """False in incidents that were opened before there were checks, rollback and replay."""
        self.takes_advice = True
        """False in incidents that were opened before the ladder heard what ranks had said."""
        self.evicts_again = True
        """False in incidents that were opened before a machine could be evicted a second time."""
        self.asks_again = True
        """False in incidents that left an eviction out before it could be asked for once more."""
        self.spares_code = True
        """False in incidents that accused code where a machine was gone."""
        self._asked = False
        self._may_deny = False
        self._word: bool | None = None
        self._last_word = ""
        self.story = Chronicle(
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
        self.pages = paging.Pages(self.story, given.job.spec.safety, given.run)
        self.tell_alerts(given.alerts)

    @property
    def record(self) -> IncidentRecord:
        """The record so far."""
        return self.story.record

    # --- Machines ---------------------------------------------------------------------------------

    def occupied(self) -> list[MachineInfo]:
        """Machines that hold a slot, by slot."""
        return [i for slot, i in enumerate(self.assignment.slots) if slot not in self.vacant]

    def reachable(self) -> list[MachineInfo]:
        """Machines that hold a slot and are not said to be gone, by slot."""
        return [info for info in self.occupied() if not self.inbox.is_lost(info)]

    def waiting(self) -> list[MachineInfo]:
        """Machines of the pool that may take a slot, in the order in which they joined."""
        return [info for info in self.pool if not self.inbox.is_lost(info)]

    # --- Evidence ---------------------------------------------------------------------------------

    def tell_alerts(self, alerts: Sequence[Alert]) -> None:
        """Tell the alerts about machines, and those about ranks that came together in one line.

        Thousands of ranks may end within a second, and hundreds of machines be lost.
        """
        by_time = sorted(alerts, key=lambda alert: alert.at_s)
        of_machines = [alert for alert in by_time if alert.rank is None]
        for alert in of_machines[:MAX_TOLD]:
            text = "\n".join((f"{alert.observer}: {alert.detail}", *alert.lines))
            self.story.tell(text, alert.at_s)
        if len(of_machines) > MAX_TOLD:
            self.story.tell(f"and {len(of_machines) - MAX_TOLD} more alerts of machines")
        of_ranks = [alert for alert in by_time if alert.rank is not None]
        if of_ranks:
            first, others = of_ranks[0], len(of_ranks) - 1
            more = f" (and {others} more rank{'s' if others > 1 else ''})" if others else ""
            self.story.tell(f"{first.observer}: {first.detail}{more}", first.at_s)

    def mark_evidence(self) -> None:
        """A round begins: training has stood still since its first evidence."""
        since_s = min((alert.at_s for alert in self.inbox.unsettled()), default=None)
        if since_s is not None:
            self.story.mark(Spent.DETECT, since_s)
        self.story.mark(Spent.LOCATE)

    def raise_own(self, symptom: Symptom, machine: str | None, detail: str) -> None:
        """Raise an alert that this workflow observed itself: an order that was not carried out."""
        now_s = workflow.now().timestamp()
        attempt = self.assignment.attempt
        self.inbox.take([Alert(Observer.CONTROLLER, symptom, now_s, detail, attempt, machine)])
        whose = "" if machine is None else f"{machine}: "
        self.story.tell(f"controller: {whose}{detail}", now_s)

    def overtaken(self) -> bool:
        """Whether newer evidence concerns what runs now."""
        return bool(self._newer())

    def only_asked(self) -> bool:
        """Whether all of that is that somebody wants a change at once."""
        newer, change = self._newer(), Symptom.CODE_DATA_ADJUSTMENT
        return bool(newer) and all(a.symptom is change and a.rank is None for a in newer)

    def _newer(self) -> list[Alert]:
        alerts = self.inbox.unsettled()
        return list(filter(self._matters_to(), alerts)) if alerts else []

    def _matters_to(self) -> Callable[[Alert], bool]:
        """Says of alerts whether they concern what runs now, and not what was stopped already."""
        here = {info.machine for info in self.occupied()}
        is_over = self.stopped_attempt == self.assignment.attempt
        told = {report.machine for report in self.stopped} if is_over else ()

        def matters(alert: Alert) -> bool:
            if alert.rank_exit is not None and alert.machine in told:
                return False
            if alert.symptom is Symptom.AGENT_LOST or (alert.subject and not alert.attempt):
                return alert.machine in here
            return alert.attempt == self.assignment.attempt

        return matters

    # --- Waiting ----------------------------------------------------------------------------------

    async def unless_overtaken(
        self, work: Coroutine[Any, Any, T], or_finished: bool = False
    ) -> T | None:
        """Await work; None when the job finished first.

        Raises:
            OvertakenError: Newer evidence came first.
        """
        task = asyncio.create_task(work)
        await workflow.wait_condition(
            lambda: task.done() or self.overtaken() or (or_finished and self.job_finished)
        )
        if task.done():
            return await task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self.overtaken():
            raise OvertakenError
        return None

    async def hold(self, missing: str, satisfied: Callable[[], bool]) -> None:
        """Wait for a person or a machine, saying for what.

        Raises:
            OvertakenError: Newer evidence came first.
        """
        if satisfied():
            return
        self.story.held(missing)
        self.pages.send(missing, Notice.NEEDS_APPROVAL if self._asked else Notice.PAGED)
        await self.story.archive()
        await workflow.wait_condition(lambda: satisfied() or self.overtaken())
        self.story.goes_on()
        if not satisfied():
            raise OvertakenError

    async def ask(self, question: str, may_deny: bool) -> bool:
        """Wait for a person's yes, or no where that is an answer.

        Raises:
            OvertakenError: Newer evidence came first.
        """
        number = self.record.incident
        ways = f"To go on all the same: everstep approve {number}"
        if may_deny:
            ways += f". To leave it out: everstep deny {number}"
        self._word, self._asked, self._may_deny = None, True, may_deny
        try:
            await self.hold(
                f"{question}. {ways}",
                lambda: self._word is True or (may_deny and self._word is False),
            )
        finally:
            self._asked = False
        return bool(self._word)

    def answer(self, yes: bool, person: str, note: str) -> None:
        """A person's word; it counts for the question that is open, and for no later one."""
        text = f"{'approved' if yes else 'denied'} by {person}{f' ({note})' if note else ''}"
        if not self._asked:
            text += ", though nothing was asked"
        elif not (yes or self._may_deny):
            text += ", though that cannot be left out"
        else:
            self._word, self._last_word = yes, text
        self.story.tell(text)

    def objection(self, decision: Decision) -> InputError | None:
        """Why a person's answer does not count, if so."""
        where = f"incident {self.record.incident}"
        look = f"See: everstep incident show {self.record.incident}."
        if not self._asked or self._word is not None:
            last = f" (it was {self._last_word})" if self._last_word else ""
            held = self.record.outcome is Outcome.HELD and not self._asked
            but = f", but: {self.record.missing}" if held else ""
            what = f"it is {self.record.outcome} and waits for nobody's word{last}{but}"
            return InputError(where, what, look)
        if decision.question not in ("", self.record.missing):
            return InputError(where, "it asks something else by now", look)
        if not (decision.yes or self._may_deny):
            return InputError(where, "what it waits for cannot be left out", "Approve it, or wait.")
        return None

    # --- The ladder -------------------------------------------------------------------------------

    def standing(self, approved: bool) -> ladder.Standing:
        """How things stand for the ladder."""
        since_s = workflow.now().timestamp() - self.job.spec.safety.window_s
        evictions = [*self.given.evictions, *self.evictions]
        running = memory.version_of(self.codes, self.assignment.code_version)
        return ladder.Standing(
            evicted_in_window=sum(1 for at_s, _ in evictions if at_s >= since_s),
            restarts_without_progress=self.restarts_without_progress,
            code_proven=running is None or running.proven,
            unavailable=self._unavailable(),
            approved=approved,
            updates=len(self.updates),
            returned=self.record.returned if self.evicts_again else (),
            asks_again=self.asks_again,
            spares_code=self.spares_code,
        )

    def _unavailable(self) -> dict[Rung, str]:
        unavailable = dict(self.job.spec.unavailable_rungs())
        if memory.rollback_target(self.codes, self.assignment.code_version) is None:
            unavailable[Rung.ROLLBACK] = "no earlier code version is known"
        if not self.whole_ladder:
            for rung in (Rung.CHECKS, Rung.ROLLBACK, Rung.REPLAY):
                unavailable[rung] = "the incident is older than this rung"
        return unavailable

    async def tell_job(
        self,
        signal: str,
        value: Assignment
        | Eviction
        | TestedMachine
        | IncidentResult
        | UpdatesMade
        | UpdatesUndone
        | UpdatesHeard
        | str,
    ) -> None:
        """Signal the job; a job that is gone needs no telling."""
        job_id = names.job_workflow_id(self.job.spec.name)
        try:
            await workflow.get_external_workflow_handle(job_id).signal(signal, value)
        except FailureError as error:
            workflow.logger.warning("could not signal %s to %s: %s", signal, job_id, error)
