"""Heartbeats and steps from an agent to the job's analyzer, reconnecting for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from everstep.agent import link
from everstep.core.errors import EverstepError
from everstep.core.model import RankProgress, RanksStarted

logger = logging.getLogger(__name__)

RECONNECT_EVERY_S = 0.1
"""Shorter than the analyzer's grace for an agent that comes back."""


class TelemetryClient:
    """Tells the analyzer that this machine lives and how far its ranks are.

    Args:
        connect: Opens a connection to the analyzer.
        machine: Name of this machine.
        pid: Process id of the agent.
        heartbeat_interval_s: Longest silence, > 0.
    """

    def __init__(
        self,
        connect: Callable[[], asyncio.Future[link.AsyncLink]],
        machine: str,
        pid: int,
        heartbeat_interval_s: float,
    ) -> None:
        self._connect = connect
        self._machine = machine
        self._pid = pid
        self._heartbeat_interval_s = heartbeat_interval_s
        self._newest: dict[int, RankProgress] = {}
        self._unsent: list[int] = []
        self._started: RanksStarted | None = None
        self._start_unsent = False
        self._news = asyncio.Event()
        self._leaving = False

    def put(self, progress: RankProgress) -> None:
        """Take in a rank's newest step; older ones that were not sent yet are superseded."""
        self._newest[progress.rank] = progress
        if progress.rank not in self._unsent:
            self._unsent.append(progress.rank)
        self._news.set()

    def put_start(self, started: RanksStarted) -> None:
        """Take in the start of a new attempt."""
        self._started, self._start_unsent = started, True
        self._news.set()

    async def farewell(self) -> None:
        """Say goodbye, so that nobody takes this agent for lost; give up after a second."""
        self._leaving = True
        self._news.set()

    async def run(self) -> None:
        """Stay connected until the farewell is said."""
        while True:
            try:
                peer = await self._connect()
            except (OSError, EverstepError, asyncio.IncompleteReadError) as error:
                logger.info("no analyzer yet: %s", error)
                if self._leaving:
                    return
                await asyncio.sleep(RECONNECT_EVERY_S)
                continue
            try:
                await self._talk(peer)
                return
            except (OSError, EOFError, asyncio.IncompleteReadError) as error:
                logger.warning("connection to the analyzer ended: %s", error)
            finally:
                peer.close()

    async def _talk(self, peer: link.AsyncLink) -> None:
        await peer.send({"type": "hello", "machine": self._machine, "pid": self._pid})
        # An analyzer that was started anew knows nothing: tell it everything again.
        self._unsent = sorted(self._newest)
        self._start_unsent = self._started is not None
        while True:
            if self._start_unsent and self._started is not None:
                self._start_unsent = False
                await peer.send(
                    {
                        "type": "started",
                        "attempt": self._started.attempt,
                        "ranks": list(self._started.ranks),
                        "step": self._started.step,
                        "at_s": self._started.at_s,
                    }
                )
            while self._unsent:
                progress = self._newest[self._unsent.pop(0)]
                await peer.send(
                    {
                        "type": "progress",
                        "attempt": progress.attempt,
                        "rank": progress.rank,
                        "step": progress.step,
                        "at_s": progress.at_s,
                    }
                )
            if self._leaving:
                await peer.send({"type": "bye"})
                return
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), self._heartbeat_interval_s)
            except TimeoutError:
                await peer.send({"type": "beat"})
