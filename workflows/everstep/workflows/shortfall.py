"""Machines that a job lacks: how many, since when, and asking the cluster for just these.

Slots come first: while an incident is open, no standby is asked for, only what its slots lack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from everstep.core import memory, standby
from everstep.core.standby import Seen
from everstep.workflows import options, ordering
from everstep.workflows.effects import MachineRequest
from everstep.workflows.messages import JobInput, JobState, Requested
from everstep.workflows.ports import ClusterPort

DAY_S = 86_400.0

COMES_WITHIN_S = 900.0
"""A machine that was asked for and has not joined by then is asked for again."""


class Shortfall:
    """Counts a job's machines and asks for those that are missing. Lives inside a workflow.

    Args:
        job: The job's input.
        state: The job's state; what was asked for is kept here.
        note: Keeps a line for whoever asks.
    """

    def __init__(self, job: JobInput, state: JobState, note: Callable[[str], None]) -> None:
        self._job = job
        self._state = state
        self._note = note
        self._standbys = job.spec.standby_count()

    def seen(self) -> Seen:
        """Failures and machine-days of this job; standbys' days are too few to count."""
        began_s, now_s = self._state.started_at_s, workflow.now().timestamp()
        days = 0.0 if began_s is None else max(0.0, now_s - began_s) / DAY_S
        return Seen(memory.num_failures(self._state.machines), days * self._job.spec.machines)

    def asked_for(self) -> int:
        """Machines that were asked for and have not come yet."""
        return sum(one.count for one in self._state.requested)

    def expect(self, count: int) -> None:
        """So many machines are on their way that nobody has to ask for."""
        if count > 0:
            now_s = workflow.now().timestamp()
            self._state.requested = [*self._state.requested, Requested(0, now_s, count)]

    def one_came(self) -> None:
        """One machine less is to come."""
        if self._state.requested:
            first, *others = self._state.requested
            left = replace(first, count=first.count - 1)
            self._state.requested = [*([left] if left.count else []), *others]

    def one_was_refused(self) -> None:
        """A machine did not become a standby, or did not stay one: perhaps none that comes will."""
        self._state.refused += 1
        self._state.refused_at_s = workflow.now().timestamp()

    def is_due(self) -> bool:
        """Whether machines are to be asked for now."""
        return self._lacking() > 0 and workflow.now().timestamp() >= self._ask_from_s()

    def next_due_s(self) -> float | None:
        """When to look again though nothing happens, or None."""
        due = [one.at_s + COMES_WITHIN_S for one in self._state.requested]
        if self._lacking() > 0 and not self.is_due():
            due.append(self._ask_from_s())
        return min(due, default=None)

    def request(self) -> MachineRequest | None:
        """What to ask for now; counted as asked for from here on."""
        self._standbys = self._job.spec.standby_count(self.seen())
        self._give_up_late()
        if not self.is_due():
            return None
        count = self._lacking()
        self._state.num_requests += 1
        number, now_s = self._state.num_requests, workflow.now().timestamp()
        self._state.requested = [*self._state.requested, Requested(number, now_s, count)]
        reason = "slots are vacant and no standby is left"
        if self._state.active is None:
            reason = f"{len(self._state.pool)} of {self._standbys} standbys are left"
        self._note(f"asked the cluster for {_machines(count)}: {reason}")
        run = workflow.info().first_execution_run_id
        total = self._job.spec.machines + self._standbys
        return MachineRequest(self._job.spec.name, run, number, count, total, reason)

    async def ask(self, request: MachineRequest) -> None:
        """Pass it on to the cluster; what does not come is asked for again later."""
        try:
            await workflow.execute_activity_method(
                ClusterPort.request_machines,
                request,
                **options.REQUEST_MACHINES.config(f"ask for {_machines(request.count)}"),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                # Given up, and not refused: the job's next run asks again.
                asked = self._state.requested
                self._state.requested = [one for one in asked if one.number != request.number]
            self._note(f"the cluster could not be asked for machines: {ordering.why(error)}")

    def _lacking(self) -> int:
        """Machines that are missing and not on their way."""
        state, assignment = self._state, self._state.assignment
        if assignment is None or not self._job.spec.standby.refill:
            return 0
        held = sum(1 for info in assignment.slots if info.machine not in state.out)
        present = held + sum(map(len, _waiting(state)))
        standbys = self._standbys if state.active is None else 0
        return self._job.spec.machines + standbys - present - self.asked_for()

    def _ask_from_s(self) -> float:
        return self._state.refused_at_s + standby.pause_s(self._state.refused)

    def _give_up_late(self) -> None:
        now_s = workflow.now().timestamp()
        for late in [o for o in self._state.requested if now_s >= o.at_s + COMES_WITHIN_S]:
            self._state.requested = [one for one in self._state.requested if one != late]
            self._note(f"{_machines(late.count)} that the cluster was to bring did not come")


def _waiting(state: JobState) -> Sequence[Sequence[object]]:
    """Machines without a slot that can have one, now or soon."""
    return state.pool, state.in_test, state.arriving


def _machines(count: int) -> str:
    return "1 machine" if count == 1 else f"{count} machines"
