"""What happens by itself in a simulated run, on a real server that skips time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from everstep.workers.simulation.fate import CLOSE_S, Fate
from everstep.workers.simulation.server import Clock, skipping

HOUR_S = 3600.0

pytestmark = [pytest.mark.server, pytest.mark.slow]


async def test_each_thing_happens_at_its_moment_while_time_stands_still() -> None:
    """What is added while others wait, too, and what is due at the same moment in its order."""
    happened: list[tuple[str, float]] = []
    told: list[float] = []
    async with skipping() as client:
        clock, fate = Clock(client), Fate(10 * HOUR_S, told.append)

        async def now_s() -> float:
            return await clock.now_s() - fate.from_s

        def noting(what: str) -> Callable[[], Awaitable[None]]:
            async def happen() -> None:
                before_s = await now_s()
                if what == "first":
                    await fate.at(2 * HOUR_S, noting("added"))
                # Long enough for the server to skip to the next thing if it were not held.
                await asyncio.sleep(0.05)
                assert await now_s() - before_s < 60.0
                happened.append((what, before_s))

            return happen

        await fate.at(5 * HOUR_S, noting("second of two"), order=7)
        await fate.at(5 * HOUR_S, noting("first of two"), order=3)
        await fate.at(1 * HOUR_S, noting("first"))
        await fate.at(11 * HOUR_S, noting("after the end"))
        began_s = time.monotonic()
        await asyncio.wait_for(fate.follow(clock), 60.0)
        took_s = time.monotonic() - began_s
    assert [what for what, _ in happened] == ["first", "added", "first of two", "second of two"]
    for due_h, (what, at_s) in zip((1, 2, 5, 5), happened, strict=True):
        assert -CLOSE_S <= at_s - due_h * HOUR_S <= took_s, what
    assert fate.latest_s <= took_s
    assert told[-1] == 1.0


async def test_what_is_still_to_come_happens_on_the_next_server() -> None:
    happened: list[float] = []
    fate = Fate(10 * HOUR_S, lambda _: None)

    async def happen() -> None:
        happened.append(1.0)

    await fate.at(2 * HOUR_S, fate.leave)
    await fate.at(3 * HOUR_S, happen)
    async with skipping() as client:
        await asyncio.wait_for(fate.follow(Clock(client)), 60.0)
    assert not happened
    async with skipping() as client:
        await asyncio.wait_for(fate.follow(Clock(client)), 60.0)
    assert happened


async def test_what_fails_ends_it() -> None:
    fate = Fate(10 * HOUR_S, lambda _: None)

    async def fail() -> None:
        raise RuntimeError("not there")

    await fate.at(HOUR_S, fail)
    async with skipping() as client:
        with pytest.raises(RuntimeError, match="not there"):
            await asyncio.wait_for(fate.follow(Clock(client)), 60.0)
