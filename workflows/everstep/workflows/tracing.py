"""Asks all machines of a job at once where their ranks stand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core import names
from everstep.core.orders import TraceOrder, TraceReport
from everstep.workflows import options
from everstep.workflows.ports import TracePort


@dataclass(frozen=True, slots=True)
class CollectInput:
    """Whom to ask.

    Attributes:
        job: Name of the job.
        machines: Names of the machines, by slot.
        order: What to ask each of them.
    """

    job: str
    machines: tuple[str, ...]
    order: TraceOrder


@dataclass(frozen=True, slots=True)
class Collected:
    """Where everybody stood, by reference.

    Attributes:
        reports: One a machine that answered, in the order of the machines.
        unheard: Machines that did not, with the reason.
    """

    reports: tuple[TraceReport, ...]
    unheard: tuple[tuple[str, str], ...]


@workflow.defn(name="CollectStacks")
class CollectStacks:
    """Collects the stacks of a job's ranks for a person; dumps go to the evidence store."""

    @workflow.run
    async def run(self, asked: CollectInput) -> Collected:
        """Ask every machine; one that does not answer keeps nobody else's answer back."""
        found = await asyncio.gather(*(self._ask(asked, machine) for machine in asked.machines))
        return Collected(
            tuple(item for item in found if isinstance(item, TraceReport)),
            tuple(item for item in found if not isinstance(item, TraceReport)),
        )

    async def _ask(self, asked: CollectInput, machine: str) -> TraceReport | tuple[str, str]:
        queue = names.machine_queue(asked.job, machine)
        try:
            return await workflow.execute_activity_method(
                TracePort.trace,
                asked.order,
                **options.TRACE.config(f"ask the ranks of {machine} where they stand", queue),
            )
        except ActivityError as error:
            return machine, str(error.cause or error)
