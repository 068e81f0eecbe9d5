"""What happens by itself in a simulated run, each thing at its moment of the server's time.

Timers of workflows, and answers of machines, the server brings about. Faults that strike, machines
that join and persons who answer are let happen from here. A sleeper waits for each: the server's
time passes while all sleep and no workflow works, and stands still from the moment that one wakes
until what it woke for has happened.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from everstep.workers.simulation.server import Clock

CLOSE_S = 0.002
"""Two clocks that tell one moment agree to the millisecond."""


@dataclass(order=True)
class _Event:
    """What happens at a moment; of what does at the same one, what was ordered first."""

    at_s: float
    order: int
    number: int
    happen: Callable[[], Awaitable[None]] = field(compare=False)


class Fate:
    """All that is still to come in a run, on one server after the other.

    Attributes:
        from_s: When the job began, Unix seconds of the server; all other times count from then.
        latest_s: By how much anything has come later than it was due.

    Args:
        end_s: When the job's days are over.
        progress: Is told how much of its time is over, 0 to 1.
    """

    def __init__(self, end_s: float, progress: Callable[[float], None]) -> None:
        self.from_s = 0.0
        self.latest_s = 0.0
        self._end_s = end_s
        self._progress = progress
        self._numbers = itertools.count()
        # The end comes after all that happens at the same moment.
        self._events = [_Event(end_s, sys.maxsize, next(self._numbers), self.leave)]
        self._clock: Clock | None = None
        self._sleepers = set[asyncio.Task[None]]()
        self._happening = asyncio.Lock()
        self._over: asyncio.Future[None] | None = None
        self._moved_at_s = time.monotonic()

    async def at(self, at_s: float, happen: Callable[[], Awaitable[None]], order: int = 0) -> None:
        """Let something happen at a moment, on this server or on the next one.

        Time stands still while this is called: in an activity, or in what happens.

        Args:
            at_s: The moment.
            happen: What happens.
            order: What comes first of all that does at the same moment: the lower one.
        """
        heapq.heappush(self._events, _Event(at_s, order, next(self._numbers), happen))
        if self._clock is not None:
            await self._send_sleeper(self._clock, at_s)

    async def sleep(self, for_s: float) -> None:
        """Sleep in an activity: time, which it holds, passes meanwhile.

        Args:
            for_s: For how long on the server's clock.
        """
        assert self._clock is not None  # noqa: S101 - activities run while it is followed
        await self._clock.sleep(for_s)

    async def follow(self, clock: Clock) -> None:
        """Let everything happen on this server, until the end, or until the job leaves it.

        Args:
            clock: The server's, whose time is held until now.

        Raises:
            temporalio.service.RPCError: The server, or a workflow that is told, is not there.
        """
        self._clock, self._over = clock, asyncio.get_running_loop().create_future()
        self.from_s = self.from_s or await clock.now_s()
        try:
            for event in sorted(self._events):
                await self._send_sleeper(clock, event.at_s)
            await clock.let_pass()
            await self._over
        finally:
            self._clock = self._over = None
            for sleeper in self._sleepers:
                sleeper.cancel()
            await asyncio.gather(*self._sleepers, return_exceptions=True)

    async def leave(self) -> None:
        """Nothing more happens on this server: its time stands still from now on."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def moved(self) -> None:
        """Something happens, or is asked of the cluster."""
        self._moved_at_s = time.monotonic()

    def idle_s(self) -> float:
        """Real seconds since anything did."""
        return time.monotonic() - self._moved_at_s

    async def _send_sleeper(self, clock: Clock, at_s: float) -> None:
        # Until the sleeper's own call, which lets time pass, has arrived.
        await clock.hold()
        for_s = self.from_s + at_s - await clock.now_s()
        sleeper = asyncio.create_task(self._sleep(clock, max(0.0, for_s)))
        self._sleepers.add(sleeper)
        sleeper.add_done_callback(self._woken)

    async def _sleep(self, clock: Clock, for_s: float) -> None:
        await clock.sleep(for_s)
        async with self._happening:
            await self._let_happen(clock)
        if self._goes_on():
            await clock.let_pass()

    async def _let_happen(self, clock: Clock) -> None:
        now_s = await clock.now_s() - self.from_s
        while self._goes_on() and self._events and self._events[0].at_s <= now_s + CLOSE_S:
            event = heapq.heappop(self._events)
            self.moved()
            self.latest_s = max(self.latest_s, now_s - event.at_s)
            self._progress(min(1.0, now_s / self._end_s))
            await event.happen()

    def _goes_on(self) -> bool:
        return self._over is not None and not self._over.done()

    def _woken(self, sleeper: asyncio.Task[None]) -> None:
        self._sleepers.discard(sleeper)
        if sleeper.cancelled() or self._over is None or self._over.done():
            return
        if (error := sleeper.exception()) is not None:
            self._over.set_exception(error)
