"""Objects of one kind as they stand, for as long as somebody looks.

List, then watch from there; after whatever goes wrong, from where it was, or anew. A watch asks the
server to end it after a while, and counts as dead when nothing comes for longer than that, since a
half-open connection would hang for ever.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from everstep.activities.kube.connection import BusyError, Connection, ExpiredError, Json
from everstep.core.errors import EverstepError

logger = logging.getLogger(__name__)

T = TypeVar("T")

WINDOW_S = 10
"""For how long one watch is asked for."""

MARGIN_S = 3.0
"""How much later than that it may end."""

SHORTEST_PAUSE_S = 0.02
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 15.0
"""Between tries while the server is away; doubled each time, and scattered, as all jobs' watches
lose it at once."""


class Follower(Generic[T]):
    """What there is of one kind; whoever looks sees the newest.

    Args:
        connection: Where to ask.
        path: What to list and watch.
        query: With what selection.
        read: What to keep of an object, with the key to keep it under.
        on_change: Called after every change, and after every listing.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        query: Mapping[str, str],
        read: Callable[[Json], tuple[str, T]],
        on_change: Callable[[], None],
    ) -> None:
        self._api, self._path, self._query = connection, path, dict(query)
        self._read, self._on_change = read, on_change
        self._version: str | None = None
        self.items: dict[str, T] = {}
        self.synced = False
        """Whether `items` has ever been complete."""

    async def run(self) -> None:
        """Follow for ever."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._once()
                pause_s = FIRST_PAUSE_S
                # Something in between may end each watch as soon as it begins.
                await asyncio.sleep(SHORTEST_PAUSE_S)
            except ExpiredError as error:
                # Deletions in between leave no event: what is listed now is all that there is.
                logger.info("%s: listed anew: %s", self._path, error)
                self._version = None
            except EverstepError as error:
                wait_s = pause_s
                if isinstance(error, BusyError) and error.retry_after_s is not None:
                    wait_s = max(wait_s, error.retry_after_s)
                logger.warning("%s is not seen, again in %.1f s: %s", self._path, wait_s, error)
                await asyncio.sleep(wait_s * random.uniform(0.75, 1.25))  # noqa: S311 - no secret
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _once(self) -> None:
        if self._version is None:
            listed = await self._api.get(self._path, self._query)
            self._version = str(listed["metadata"]["resourceVersion"])
            self.items = dict(self._read(item) for item in listed["items"])
            self.synced = True
            self._on_change()
        query: dict[str, str] = {
            **self._query,
            "resourceVersion": self._version,
            "timeoutSeconds": str(WINDOW_S),
            "allowWatchBookmarks": "true",
        }
        async for event in self._api.watch(self._path, query, WINDOW_S + MARGIN_S):
            self._take(event)

    def _take(self, event: Json) -> None:
        item = event["object"]
        self._version = item["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return
        key, value = self._read(item)
        if event["type"] == "DELETED":
            self.items.pop(key, None)
        else:
            self.items[key] = value
        self._on_change()
