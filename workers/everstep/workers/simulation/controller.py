"""A controller for a simulated cluster: `python -m everstep.workers.simulation.controller`.

The workflows that run in production, in a process of its own, which may be killed at any moment.
"""

from __future__ import annotations

import sys

from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from everstep.workers import runtime, stopping
from everstep.workers.simulation.redirect import Redirect
from everstep.workers.simulation.server import CONVERTER
from everstep.workflows import simulated
from everstep.workflows.order_machines import OrderMachines
from everstep.workflows.simulated import OrderSimulated, SimulateFate

WORKFLOWS = [
    *(workflow for workflow in runtime.WORKFLOWS if workflow is not OrderMachines),
    OrderSimulated,
    SimulateFate,
]


async def main(address: str, queue: str) -> int:
    """Poll until told to stop."""
    stop = stopping.stop_requested()
    client = await Client.connect(address, data_converter=CONVERTER)
    async with Worker(
        client,
        task_queue=queue,
        workflows=WORKFLOWS,
        workflow_runner=_runner(),
        workflow_failure_exception_types=list(runtime.WORKFLOW_FAILURE_TYPES),
        sticky_queue_schedule_to_start_timeout=runtime.STICKY_TIMEOUT,
        interceptors=[Redirect()],
    ):
        await stop.wait()
    return 0


def _runner() -> SandboxedWorkflowRunner:
    """The sandbox of production, which the stand-ins need not be read anew for."""
    restrictions = runtime.workflow_runner().restrictions
    return SandboxedWorkflowRunner(
        restrictions=restrictions.with_passthrough_modules(simulated.__name__)
    )


if __name__ == "__main__":
    stopping.die_with_parent()
    runtime.run_process(main(*sys.argv[1:3]))
