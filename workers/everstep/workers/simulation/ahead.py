"""The next server and its controller, made ready while the job is still on the last one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from temporalio.client import Client

from everstep.core import names
from everstep.workers.simulation.controllers import Controllers, controlled
from everstep.workers.simulation.server import skipping

QUEUE = f"{names.CONTROLLER_QUEUE}.simulated"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part of a run takes place.

    Attributes:
        client: Of a fresh server, whose time stands still.
        controllers: One that polls there, or is about to.
    """

    client: Client
    controllers: Controllers


class Ahead:
    """Opens places, each once: the next one beforehand, if it is told in time.

    Args:
        killed: Whether some controllers will be killed.
    """

    def __init__(self, killed: bool) -> None:
        self._killed = killed
        self._opening: asyncio.Task[tuple[Place, contextlib.AsyncExitStack]] | None = None

    def prepare(self) -> None:
        """Begin to open the next place, unless that has begun."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncGenerator[Place]:
        """The next place, until the end.

        Raises:
            InputError: The time-skipping server is not installed.
            TransientError: It does not answer, or ended before its user.
        """
        self.prepare()
        assert self._opening is not None  # noqa: S101 - as said
        opening, self._opening = self._opening, None
        place, stack = await opening
        async with stack:
            yield place

    async def close(self) -> None:
        """Close what was opened for nobody."""
        if self._opening is None:
            return
        self._opening.cancel()
        for opened in await asyncio.gather(self._opening, return_exceptions=True):
            if not isinstance(opened, BaseException):
                await opened[1].aclose()

    async def _open(self) -> tuple[Place, contextlib.AsyncExitStack]:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(skipping())
            controlling = controlled(client, QUEUE, self._killed)
            controllers = await stack.enter_async_context(controlling)
            return Place(client, controllers), stack.pop_all()
