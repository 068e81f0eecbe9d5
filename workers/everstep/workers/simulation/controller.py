"""A controller for a simulated cluster: `python -m everstep.workers.simulation.controller`.

The workflows that run in production, in a process of its own, which may be killed at any moment.
"""

from __future__ import annotations

import gc
import logging
import sys

from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from everstep.workers import runtime, stopping
from everstep.workers.simulation.redirect import Redirect
from everstep.workers.simulation.server import connect

KILLED, LEFT_ALONE = "killed", "left-alone"

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Workflows of a thousand machines are many objects and little garbage: to look through them as
often as Python does by itself took a twelfth of a controller's time."""


async def main(address: str, queue: str, identity: str, fate: str) -> int:
    """Poll until told to stop.

    Args:
        address: Of the server.
        queue: The controllers' queue.
        identity: What it calls itself.
        fate: `KILLED` where controllers are killed.
    """
    # What a job notes in ninety days is in its records.
    logging.getLogger("temporalio.workflow").setLevel(logging.ERROR)
    stop = stopping.stop_requested()
    client = await connect(address, identity)
    async with Worker(
        client,
        task_queue=queue,
        workflows=runtime.WORKFLOWS,
        # The sandbox refuses what would not be deterministic, and takes half of the time.
        workflow_runner=UnsandboxedWorkflowRunner(),
        workflow_failure_exception_types=list(runtime.WORKFLOW_FAILURE_TYPES),
        sticky_queue_schedule_to_start_timeout=runtime.STICKY_TIMEOUT,
        interceptors=[Redirect(fate == KILLED)],
        # A busy machine may take more than the two seconds after which this is taken for a lock.
        debug_mode=True,
    ):
        await stop.wait()
    return 0


if __name__ == "__main__":
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    runtime.run_process(main(*sys.argv[1:5]))
