"""How this project uses Temporal: converter, sandbox, client; for workers, tests and replay."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, NoReturn

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime
from temporalio.service import RPCError
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from everstep.core import names
from everstep.core.errors import EverstepError, InputError, TransientError
from everstep.workers import stopping
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.order_machines import OrderMachines
from everstep.workflows.tracing import CollectStacks

WORKFLOWS = [RunJob, ResolveIncident, OrderMachines, CollectStacks]

WORKFLOW_FAILURE_TYPES = (EverstepError,)
"""A domain error fails the workflow; any other exception retries the workflow task for ever, which
is what a bug should do until fixed code is deployed."""

STICKY_TIMEOUT = timedelta(seconds=1)
"""How long a dead worker's workflows wait before another takes them (the default is 10 s)."""

VALUES_ALONE = (
    "everstep.core",
    "everstep.spec",
    "everstep.workflows.batches",
    "everstep.workflows.effects",
    "everstep.workflows.messages",
    "everstep.workflows.options",
    "everstep.workflows.ports",
    "pydantic",
    "pydantic_core",
    "annotated_types",
)
"""Packages and modules that decide nothing over time: imported once, and not once more a workflow,
which halves what it takes to open an incident."""

RECONNECT_EVERY_S = 0.3

ENDED_EVERY_S = 15.0
"""How often a pod asks whether its job has ended: 80 questions a second from 1,200 pods."""

SAID_CHARS = 160
"""How much of the native client's long errors a message quotes."""


def workflow_runner() -> SandboxedWorkflowRunner:
    """The sandbox, with what is pure passed through so that it is imported once."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*VALUES_ALONE)
    return SandboxedWorkflowRunner(restrictions=restrictions)


async def connect(patience_s: float = float("inf"), native: Runtime | None = None) -> Client:
    """Connect to the server that Temporal's standard environment configuration names.

    Args:
        patience_s: How long to go on trying while nobody answers.
        native: The SDK's own runtime; None for the one that all share.

    Raises:
        InputError: The configuration cannot be read, or names no server.
        TransientError: Nobody answered in time.
    """
    try:
        config = ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(
            "Temporal's environment configuration",
            str(error),
            "Correct the TEMPORAL_* variables or the file that they name.",
        ) from error
    if "target_host" not in config:
        raise InputError(
            "TEMPORAL_ADDRESS",
            "is not set, and no profile names a server",
            "Give HOST:PORT of the Temporal server, or a profile (TEMPORAL_PROFILE).",
        )
    deadline_s = asyncio.get_running_loop().time() + patience_s
    said = "no answer"
    while True:
        try:
            # An address that swallows packets gives no answer for ever.
            async with asyncio.timeout_at(deadline_s):
                return await Client.connect(**config, data_converter=DATA_CONVERTER, runtime=native)
        except TimeoutError as error:
            where = config.get("target_host", "the default address")
            raise TransientError(f"no Temporal server answers at {where} ({said})") from error
        except (RuntimeError, RPCError) as error:
            said = str(error).removeprefix("Failed client connect: ")[:SAID_CHARS]
            logging.getLogger(__name__).info("no Temporal server yet: %s", error)
        await asyncio.sleep(RECONNECT_EVERY_S)


async def job_ended(client: Client, job: str) -> None:
    """Return when the job's workflow has ended; one that was not started yet is waited for.

    Asked now and then: as many agents as a job has would each hold a long poll for the answer.
    """
    handle = client.get_workflow_handle(names.job_workflow_id(job))
    going_on = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)
    while True:
        try:
            if (await handle.describe()).status not in going_on:
                return
        except RPCError as error:
            logging.getLogger(__name__).info("the job cannot be asked for: %s", error)
        await asyncio.sleep(ENDED_EVERY_S)


def run_process(main: Coroutine[Any, Any, int]) -> NoReturn:
    """Run a process's main coroutine and end the process with its result.

    Leaves by `os._exit`: the interpreter's own shutdown can abort inside the SDK's native threads
    after everything has succeeded (sdk-python #300).
    """
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    code = 1
    try:
        code = asyncio.run(main)
    except stopping.StoppedError:
        code = stopping.STOPPED
    except EverstepError as error:
        logging.getLogger("everstep").critical("%s", error)
        code = 2
    except Exception:
        logging.getLogger("everstep").exception("ended by an unexpected error")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
