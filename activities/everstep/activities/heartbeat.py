"""Heartbeats for activities that wait on something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from temporalio import activity


@asynccontextmanager
async def beating() -> AsyncGenerator[None]:
    """Heartbeat at a third of the activity's heartbeat time-out while the block runs.

    The time-out begins when the activity does, so that what is done at once costs the server no
    heartbeat. An activity without a heartbeat time-out is left alone.
    """
    timeout = activity.info().heartbeat_timeout
    if timeout is None:
        yield
        return

    async def beat(every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            activity.heartbeat()

    task = asyncio.create_task(beat(timeout.total_seconds() / 3))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
