"""How our processes wait for their end, without missing what ends in between."""

from __future__ import annotations

import asyncio

import pytest

from everstep.workers import stopping

PATIENCE_S = 1.0


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise ValueError("a mistake")


async def soon() -> None:
    await asyncio.sleep(0)


async def test_what_ends_is_told_from_a_stop() -> None:
    stop = asyncio.Event()
    assert await stopping.until_stopped(stop, soon())
    stop.set()
    assert not await stopping.until_stopped(stop, for_ever())
    assert not await stopping.until_stopped(stop, None)


async def test_a_part_that_fails_fails_all() -> None:
    parts = [asyncio.create_task(part) for part in (for_ever(), fails())]
    with pytest.raises(ValueError, match="a mistake"):
        async with asyncio.timeout(PATIENCE_S):
            await stopping.until_stopped(asyncio.Event(), stopping.first_to_end(parts))
    assert not parts[0].done()
    parts[0].cancel()


async def test_a_stop_before_the_work_cuts_off_what_it_waits_for() -> None:
    stop = asyncio.Event()
    assert await stopping.unless_stopped(stop, asyncio.sleep(0, "there")) == "there"
    with pytest.raises(ValueError, match="a mistake"):
        await stopping.unless_stopped(stop, fails())
    asyncio.get_running_loop().call_later(0.01, stop.set)
    with pytest.raises(stopping.StoppedError):
        async with asyncio.timeout(PATIENCE_S):
            await stopping.unless_stopped(stop, for_ever())
