"""The controllers of a simulated run: one at a time, each of which may be killed."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator

from temporalio.api.enums.v1 import TaskQueueKind, WorkflowTaskFailedCause
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueRequest,
    RespondWorkflowTaskFailedRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from everstep.agent.leash import leashed
from everstep.workers.simulation.controller import KILLED, LEFT_ALONE
from everstep.workers.simulation.wire import Wire

QUEUES_EMPTIED = 8
"""Of so many dead controllers; each workflow that still runs is given a task in every incident."""

AGAIN_AFTER_S = 0.2


class Controllers:
    """One controller at a time, in a process of its own.

    A server gives the tasks of a workflow to the controller that remembers it, in a queue of its
    own. Temporal's time-skipping one goes on doing so when it is dead, and knows no time-out for
    that. So what lies in the queue of a dead one is taken and refused, after which the server
    offers it to all.

    Args:
        client: Of the server.
        queue: The controllers' queue.
        wire: What they reach it through; None where none is ever killed.
    """

    def __init__(self, client: Client, queue: str, wire: Wire | None) -> None:
        self._client, self._queue, self._wire = client, queue, wire
        self._process: subprocess.Popen[bytes] | None = None
        self._emptying = deque[asyncio.Task[None]]()
        self._started = 0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`

    def start(self) -> None:
        """Start one."""
        self._started += 1
        target = self._client.service_client.config.target_host
        address = target if self._wire is None else self._wire.address
        command = [sys.executable, "-m", "everstep.workers.simulation.controller"]
        command += [address, self._queue, self._identity]
        command.append(LEFT_ALONE if self._wire is None else KILLED)
        # A person's Ctrl-C is for who started it, who ends it.
        self._process = subprocess.Popen(
            leashed(command), stdout=subprocess.DEVNULL, stderr=self._said, process_group=0
        )

    def ended(self) -> str | None:
        """How one ended by itself, and what it said last; None while it lives."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        return f"{code}: {said[-1]}" if said else f"{code}"

    def kill(self) -> None:
        """Kill it without notice, and start another one that knows nothing; none after the end."""
        if self._process is None:
            return
        assert self._wire is not None  # noqa: S101 - as said
        self._process.kill()
        self._process.wait()
        if (queue := self._wire.queue_of(self._identity)) is not None:
            self._emptying.append(asyncio.create_task(self._empty(queue)))
        if len(self._emptying) > QUEUES_EMPTIED:
            self._emptying.popleft().cancel()
        self.start()

    async def stop(self) -> None:
        """End it."""
        for task in self._emptying:
            task.cancel()
        await asyncio.gather(*self._emptying, return_exceptions=True)
        if self._process is not None:
            # Nothing that it may be at is of use to anybody, and `wire` waits with us.
            self._process.kill()
            self._process.wait()
            self._process = None
        self._said.close()

    @property
    def _identity(self) -> str:
        return f"controller{self._started}"

    async def _empty(self, queue: str) -> None:
        """Refuse whatever comes into a dead controller's queue."""
        namespace, service = self._client.namespace, self._client.workflow_service
        own = TaskQueue(
            name=queue, kind=TaskQueueKind.TASK_QUEUE_KIND_STICKY, normal_name=self._queue
        )
        cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE
        poll = PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=own, identity=queue)
        while True:
            try:
                task = await service.poll_workflow_task_queue(poll)
                if task.task_token:
                    refusal = RespondWorkflowTaskFailedRequest(
                        namespace=namespace, task_token=task.task_token, cause=cause, identity=queue
                    )
                    await service.respond_workflow_task_failed(refusal)
            except RPCError:
                # The task timed out first, or the server ends.
                await asyncio.sleep(AGAIN_AFTER_S)


@contextlib.asynccontextmanager
async def controlled(client: Client, queue: str, killed: bool) -> AsyncGenerator[Controllers]:
    """A controller, until the end.

    Args:
        client: Of the server.
        queue: The controllers' queue.
        killed: Whether some will be killed.
    """
    wire = Wire(client.service_client.config.target_host) if killed else None
    async with contextlib.AsyncExitStack() as stack:
        if wire is not None:
            await stack.enter_async_context(wire.listening())
        controllers = Controllers(client, queue, wire)
        controllers.start()
        stack.push_async_callback(controllers.stop)
        yield controllers
