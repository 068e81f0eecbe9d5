"""Asks all machines of a job at once where their ranks stand."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import workflow

from everstep.core.orders import TraceOrder, TraceReport
from everstep.workflows import ordering
from everstep.workflows.batches import MACHINES_PER_BATCH, Refusal


@dataclass(frozen=True, slots=True)
class CollectInput:
    """Whom to ask.

    Attributes:
        job: Name of the job.
        machines: Names of the machines, by slot.
        order: What to ask each of them.
        machines_per_batch: How many one workflow asks by itself.
    """

    job: str
    machines: tuple[str, ...]
    order: TraceOrder
    machines_per_batch: int = MACHINES_PER_BATCH


@dataclass(frozen=True, slots=True)
class Collected:
    """Where everybody stood, by reference.

    Attributes:
        reports: One a machine that answered, in the order of the machines; of a large job without
            entries of ranks, which lie under each report's manifest.
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
        answers = await ordering.order(
            asked.job,
            asked.machines_per_batch,
            ordering.TRACE,
            [(machine, asked.order) for machine in asked.machines],
        )
        return Collected(
            tuple(item for item in answers if not isinstance(item, Refusal)),
            tuple((item.machine, item.reason) for item in answers if isinstance(item, Refusal)),
        )
