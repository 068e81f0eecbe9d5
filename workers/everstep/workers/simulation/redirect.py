"""Lets one worker answer for everybody: activities go to its queue, whatever theirs was.

Batches of machines, which a child workflow each orders in production, are one activity here: the
cluster answers for all of them at once, when they would have.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from everstep.workers.simulation.silent import Unshown
from everstep.workflows import options
from everstep.workflows.batches import ORDER_MACHINES, MachineOrders, MachineReports

T = TypeVar("T")

ORDERS, REPORTS = TypeAdapter(MachineOrders), TypeAdapter(MachineReports)

AWAIT_STEP = "analysis.await_step"
"""Waits for what may never come, and is given up after what the job's spec says."""

ANSWER_BATCH = "simulation.answer"
"""Carries `MachineOrders` out, and answers `MachineReports` once all have answered."""

SUFFIX = ".cluster"
"""The simulated cluster polls the controller's queue with this at its end."""

NEVER = timedelta(days=3650)
"""The cluster is always there, and each time-out that comes costs the server more than the last."""


class Redirect(Interceptor):
    """Sends every activity of the workflows to the simulated cluster, for as long as it takes.

    Args:
        killed: Whether controllers are killed: only then a workflow's task has a time-out.
    """

    def __init__(self, killed: bool = True) -> None:
        self._killed = killed

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        """For each workflow."""
        return _Inbound if self._killed else _Patient


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Patient(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_PatientOutbound(outbound))


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor) -> None:
        super().__init__(next)
        self._numbers = itertools.count()
        self._orders = _Orders()

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        """A machine's order names the machine, which its queue did."""
        if (answer := _UNSHOWN.get(input.activity)) is not None:
            return _Answer(answer(*input.args))
        machine = (input.task_queue or "").rpartition(".")[2]
        input.activity_id = f"{machine}/{next(self._numbers)}"
        input.task_queue = workflow.info().task_queue + SUFFIX
        input.schedule_to_start_timeout = input.heartbeat_timeout = None
        input.start_to_close_timeout = NEVER
        if input.activity != AWAIT_STEP:
            input.schedule_to_close_timeout = None
        return super().start_activity(input)

    async def start_child_workflow(
        self, input: StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        """A batch is no workflow: its machines are the cluster's."""
        if input.workflow != ORDER_MACHINES:
            return await super().start_child_workflow(input)
        order, _, _ = input.id.rpartition("/")
        return _Batch(self._orders.answered(order, input.args[0]))


class _PatientOutbound(_Outbound):
    async def start_child_workflow(
        self, input: StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        input.task_timeout = NEVER
        return await super().start_child_workflow(input)


_UNSHOWN = Unshown().unshown()


class _Answer(workflow.ActivityHandle[Any]):
    """What was answered in the workflow itself."""


class _Batch(workflow.ChildWorkflowHandle[Any, MachineReports]):
    """What its parent takes for the workflow that orders a batch."""

    async def signal(self, *args: object, **options: object) -> None:
        """Who will not answer any more the cluster knows already."""


class _Orders:
    """Puts the batches of an order together again, before the cluster is asked."""

    def __init__(self) -> None:
        self._batches: dict[str, list[MachineOrders]] = {}
        self._asking: dict[str, asyncio.Task[MachineReports]] = {}

    async def answered(self, order: str, batch: MachineOrders) -> MachineReports:
        """The reports of the whole order, in which each batch finds its own.

        Args:
            order: What its batches have in common, which are given in one moment.
            batch: One of them.
        """
        self._batches.setdefault(order, []).append(batch)
        if order not in self._asking:
            self._asking[order] = asyncio.create_task(self._ask(order))
        return await self._asking[order]

    async def _ask(self, order: str) -> MachineReports:
        # Begins when this moment's other batches have been given.
        reports: MachineReports = await workflow.execute_activity(
            ANSWER_BATCH,
            as_payload(ORDERS, _together(self._batches.pop(order))),
            result_type=MachineReports,
            start_to_close_timeout=NEVER,
            retry_policy=options.PROMPT_RETRY,
        )
        del self._asking[order]
        return reports


def as_payload(type_of: TypeAdapter[T], value: T) -> RawValue:
    """As it is written anyway, in a third of the time: what it is made of is known beforehand.

    Args:
        type_of: Of what is written; its numbers are finite.
        value: What is written.
    """
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=type_of.dump_json(value)))


def _together(batches: Sequence[MachineOrders]) -> MachineOrders:
    def every(name: str) -> tuple[Any, ...]:
        return tuple(one for batch in batches for one in getattr(batch, name))

    names = [one.name for one in dataclasses.fields(MachineOrders)]
    listed: dict[str, Any] = {n: every(n) for n in names if n not in ("job", "at_once")}
    return dataclasses.replace(batches[0], **listed)
