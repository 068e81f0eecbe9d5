"""Taking a node out, and giving it back: read, decide, write if nobody else has written.

What to write is decided by `core.kubernetes.quarantine`; each round begins from the node as it is,
so that a controller which died in the middle is carried on by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from everstep.activities.kube.connection import (
    STRATEGIC,
    ChangedError,
    Connection,
    Json,
    NotThereError,
)
from everstep.core import faultpoint
from everstep.core.errors import TransientError
from everstep.core.kubernetes import quarantine
from everstep.core.kubernetes.pods import text_of
from everstep.core.kubernetes.quarantine import Mark

NODES = "/api/v1/nodes"

MAX_ROUNDS = 10
"""A node is written by its kubelet every few minutes, by others now and then: ten times in a row
between our reading and our writing is somebody who fights us."""


class Nodes:
    """The nodes of a cluster, as far as they are taken out and given back.

    Args:
        connection: Where to ask.
    """

    def __init__(self, connection: Connection) -> None:
        self._api = connection

    async def quarantine(self, name: str, mark: Mark) -> bool:
        """Hold a node in quarantine; False where there is no such node any more.

        Raises:
            EverstepError: As requests do.
        """

        async def once() -> None:
            node = await self._api.get(f"{NODES}/{name}")
            faultpoint.reached("quarantine_before_mark")
            if (patch := quarantine.quarantined(node, mark)) is not None:
                node = await self._api.patch(f"{NODES}/{name}", patch)
            faultpoint.reached("quarantine_after_mark")
            await self._tell(node, quarantine.marks_of(node))
            faultpoint.reached("quarantine_after_condition")

        return await self._undisturbed(name, once)

    async def release(self, name: str, job: str) -> bool:
        """Undo what was done to a node for a job; False where there is no such node any more.

        Raises:
            EverstepError: As requests do.
        """

        async def once() -> None:
            node = await self._api.get(f"{NODES}/{name}")
            faultpoint.reached("release_before_condition")
            node = await self._tell(node, quarantine.marks_without(node, job))
            faultpoint.reached("release_after_condition")
            if (patch := quarantine.released(node, job)) is not None:
                await self._api.patch(f"{NODES}/{name}", patch)
            faultpoint.reached("release_after_mark")

        return await self._undisturbed(name, once)

    async def _tell(self, node: Json, marks: Sequence[Mark]) -> Json:
        """Let the node's status tell of these marks; the node as it is then."""
        patch = quarantine.condition(node, marks, text_of(time.time()))
        if patch is None:
            return node
        return await self._api.patch(f"{NODES}/{node['metadata']['name']}/status", patch, STRATEGIC)

    async def _undisturbed(self, name: str, once: Callable[[], Awaitable[None]]) -> bool:
        for _ in range(MAX_ROUNDS):
            try:
                await once()
            except NotThereError:
                return False
            except ChangedError:
                continue
            return True
        raise TransientError(f"node {name} changes too often to be marked")
