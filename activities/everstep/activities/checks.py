"""Tests of one machine between two attempts: run by its own agent, on its own task queue."""

from __future__ import annotations

from typing import Protocol

from temporalio import activity

from everstep.activities.failure import as_failures
from everstep.activities.heartbeat import beating
from everstep.core.orders import CheckOrder, CheckResult
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.workflows.ports import CheckPort


class Checked(Protocol):
    """What an agent offers; `everstep.agent.machine.Machine` is one."""

    async def check(self, order: CheckOrder) -> CheckResult:
        """Check the machine while no ranks run."""
        ...

    async def replay(self, order: ReplayOrder) -> ReplayReport:
        """Take part in a trial."""
        ...


class CheckActivities(CheckPort):
    """Tests the machine on which this process runs. What is cancelled is ended at once.

    Args:
        machine: The machine itself.
    """

    def __init__(self, machine: Checked) -> None:
        self._machine = machine

    @activity.defn(name="machine.check")
    async def check(self, order: CheckOrder) -> CheckResult:
        """Check the machine while no ranks run.

        Effect: programs that load GPU, memory or links for at most the order's deadline; all of
            them are gone afterwards, also when the activity is cancelled.
        Idempotent by: the order; a second call returns the first result.
        Heartbeats: yes.
        Gives up when: ranks of the attempt run, or a newer attempt does (`StaleAttempt`); what
            cannot be told is a verdict of its own.
        """
        with as_failures():
            async with beating():
                return await self._machine.check(order)

    @activity.defn(name="machine.replay")
    async def replay(self, order: ReplayOrder) -> ReplayReport:
        """Run the job, made small, as one machine of a group.

        Effect: ranks that save nothing, for at most the order's deadline; all of them are gone
            afterwards, also when the activity is cancelled. Checkpoints stay as they are.
        Idempotent by: the order; a second call returns the first report.
        Heartbeats: yes.
        Gives up when: ranks of the attempt run, or a newer attempt does (`StaleAttempt`); what
            cannot be told is a verdict of its own.
        """
        with as_failures():
            async with beating():
                return await self._machine.replay(order)
