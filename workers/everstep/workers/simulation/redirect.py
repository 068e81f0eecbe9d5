"""Lets one worker answer for everybody: activities go to its queue, whatever theirs was.

A batch of machines, which a child workflow orders in production, is one activity here: the cluster
answers for all of them at once, when they would have.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from everstep.workflows import options
from everstep.workflows.batches import ORDER_MACHINES, MachineOrders, MachineReports

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

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        """A machine's order names the machine, which its queue did."""
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
        return _Batch(_answered(input.args[0], input.static_summary or ""))


class _PatientOutbound(_Outbound):
    async def start_child_workflow(
        self, input: StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        input.task_timeout = NEVER
        return await super().start_child_workflow(input)


class _Batch(workflow.ChildWorkflowHandle[Any, MachineReports]):
    """What its parent takes for the workflow that orders a batch."""

    async def signal(self, *args: object, **options: object) -> None:
        """Who will not answer any more the cluster knows already."""


async def _answered(batch: MachineOrders, summary: str) -> MachineReports:
    reports: MachineReports = await workflow.execute_activity(
        ANSWER_BATCH,
        batch,
        result_type=MachineReports,
        start_to_close_timeout=NEVER,
        retry_policy=options.PROMPT_RETRY,
        summary=summary,
    )
    return reports
