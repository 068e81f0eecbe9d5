"""Asking a workflow for what it may refuse: its refusal becomes a message and an exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from everstep.core.errors import EverstepError, InputError, TransientError
from everstep.workers import runtime

PATIENCE_S = 10.0
"""How long a server may take to answer at all."""

T = TypeVar("T")


class RefusedError(InputError):
    """What was asked for is not possible as things stand.

    Args:
        said: What the workflow says.
    """

    def __init__(self, said: str) -> None:
        super().__init__("", said, "")
        self.args = (said,)

    def __str__(self) -> str:
        return f"refused: {self.what}"


async def connect(patience_s: float) -> Client:
    """Connect to the server that the environment names, as `runtime.connect` does.

    The native client says nothing of its retries between a command's own lines: the error that
    comes of them is the command's to tell.
    """
    return await runtime.connect(patience_s, _quiet())


@cache
def _quiet() -> Runtime:
    return Runtime(telemetry=TelemetryConfig(logging=None))


def ask(asking: Coroutine[Any, Any, T], over: EverstepError) -> T:
    """Run a conversation with a workflow.

    Args:
        asking: It; executes updates.
        over: What to raise when the workflow has ended.

    Raises:
        RefusedError: The workflow refuses.
        TransientError: The workflow could not tell.
    """
    try:
        return asyncio.run(asking)
    except WorkflowUpdateFailedError as error:
        raise _refusal(error) from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise over from error
        raise


def _refusal(error: WorkflowUpdateFailedError) -> EverstepError:
    cause = error.cause
    said = cause.message if isinstance(cause, ApplicationError) else str(cause)
    if isinstance(cause, ApplicationError) and cause.type == TransientError.__name__:
        return TransientError(said)
    if isinstance(cause, ApplicationError) and cause.type == "AcceptedUpdateCompletedWorkflow":
        return TransientError(f"it ended before it answered: {said}")
    return RefusedError(said)
