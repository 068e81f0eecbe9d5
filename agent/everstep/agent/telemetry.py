"""Heartbeats and what ranks say, from an agent to the job's analyzer, reconnecting for ever."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict

from everstep.agent import link
from everstep.core.errors import EverstepError
from everstep.core.model import RankProgress, RanksStarted

logger = logging.getLogger(__name__)

RECONNECT_EVERY_S = 0.1
"""Shorter than the analyzer's grace for an agent that comes back."""

REMEMBERED = 32
"""Reports of each rank that an analyzer which was started anew is told: enough to learn the ranks'
rhythm from, so that it sees a hang that stands already."""

MOST_UNSENT = 4096
"""Reports that wait for a slow analyzer; older ones are dropped."""


class TelemetryClient:
    """Tells the analyzer that this machine lives and what its ranks say.

    Args:
        connect: Opens a connection to the analyzer.
        machine: Name of this machine.
        pid: Process id of the agent.
        heartbeat_interval_s: Longest silence, > 0.
        slowed: Tells what the machine's senses see now that slows it.
    """

    def __init__(
        self,
        connect: Callable[[], asyncio.Future[link.AsyncLink]],
        machine: str,
        pid: int,
        heartbeat_interval_s: float,
        slowed: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._connect = connect
        self._machine = machine
        self._pid = pid
        self._heartbeat_interval_s = heartbeat_interval_s
        self._past: dict[int, deque[RankProgress]] = {}
        self._figures: dict[int, RankProgress] = {}
        self._unsent: deque[RankProgress] = deque(maxlen=MOST_UNSENT)
        self._slowed = slowed
        self._slowed_told: Sequence[str] = ()
        self._started: RanksStarted | None = None
        self._start_unsent = False
        self._news = asyncio.Event()
        self._leaving = False

    def put(self, progress: RankProgress) -> None:
        """Take in what a rank said."""
        past = self._past.setdefault(progress.rank, deque(maxlen=REMEMBERED))
        past.append(progress)
        if progress.loss is not None or progress.grad_norm is not None:
            # However long ago: not being a number is a fault that stands.
            self._figures[progress.rank] = progress
        self._unsent.append(progress)
        self._news.set()

    def put_start(self, started: RanksStarted) -> None:
        """Take in the start of a new attempt; what ranks said before it is forgotten."""
        self._started, self._start_unsent = started, True
        self._past, self._figures = {}, {}
        self._news.set()

    def newest(self) -> list[RankProgress]:
        """What each rank said last, by rank."""
        return [self._past[rank][-1] for rank in sorted(self._past)]

    def figures(self) -> list[RankProgress]:
        """What each rank last said of its loss or gradient norm, by rank."""
        return [self._figures[rank] for rank in sorted(self._figures)]

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
        self._unsent.clear()
        self._unsent.extend(self._remembered())
        self._start_unsent = self._started is not None
        self._slowed_told = ()
        while True:
            if self._start_unsent and self._started is not None:
                self._start_unsent = False
                await peer.send(_message("started", self._started))
            if (slowed := self._slowed()) != self._slowed_told:
                self._slowed_told = slowed
                await peer.send({"type": "slowed", "details": slowed})
            while self._unsent:
                await peer.send(_message("progress", self._unsent.popleft()))
            if self._leaving:
                await peer.send({"type": "bye"})
                return
            self._news.clear()
            try:
                # Python 3.11's `wait_for` loses a cancellation that comes together with the news.
                async with asyncio.timeout(self._heartbeat_interval_s):
                    await self._news.wait()
            except TimeoutError:
                await peer.send({"type": "beat"})

    def _remembered(self) -> list[RankProgress]:
        """Everything that is known of the ranks, in the order in which they said it."""
        said = [progress for past in self._past.values() for progress in past]
        said += [
            figures for rank, figures in self._figures.items() if figures not in self._past[rank]
        ]
        return sorted(said, key=lambda progress: progress.at_s)


def _message(kind: str, event: RankProgress | RanksStarted) -> dict[str, object]:
    """An event, with its age instead of a common clock."""
    fields = {name: value for name, value in asdict(event).items() if value is not None}
    return {"type": kind, **fields, "age_s": max(0.0, time.time() - event.at_s)}
