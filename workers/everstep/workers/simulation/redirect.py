"""Lets one worker answer for everybody: activities go to its queue, whatever theirs was."""

from __future__ import annotations

import itertools
from typing import Any

from temporalio import workflow
from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

SUFFIX = ".cluster"
"""The simulated cluster polls the controller's queue with this at its end."""


class Redirect(Interceptor):
    """Sends every activity of the workflows to the simulated cluster."""

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        """For each workflow."""
        return _Inbound


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor) -> None:
        super().__init__(next)
        self._numbers = itertools.count()

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        """A machine's order names the machine, which its queue did."""
        machine = (input.task_queue or "").rpartition(".")[2]
        input.activity_id = f"{machine}/{next(self._numbers)}"
        input.task_queue = workflow.info().task_queue + SUFFIX
        # The cluster is always there; each time-out costs the server more than the one before.
        input.schedule_to_start_timeout = input.heartbeat_timeout = None
        return super().start_activity(input)
