"""How our processes end: on SIGTERM in order, and with their parent in any case."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from everstep.agent.process import die_with

T = TypeVar("T")


STOPPED = 143
"""Exit code of who was told to end before its work has: as shells have it for SIGTERM."""


class StoppedError(Exception):
    """This process was told to stop before it had begun its work."""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; call it from the main thread.

    The first process of a container has none that it can see, and is ended with the container.
    """
    if parent := os.getppid():
        die_with(parent)


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """What must be there before a process can work: a server that answers, say.

    Raises:
        StoppedError: A stop was requested before.
        Exception: What the work raised.
    """
    stopped, done = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(work)
    await asyncio.wait([stopped, done], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if done.done():
        return done.result()
    done.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await done
    raise StoppedError


async def until_stopped(stop: asyncio.Event, other: Coroutine[None, None, None] | None) -> bool:
    """Wait until a stop is requested, or something else comes to its end.

    Returns:
        Whether the other has ended.

    Raises:
        Exception: What the other raised.
    """
    if other is None:
        await stop.wait()
        return False
    stopped, ended = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(other)
    await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if ended.done():
        ended.result()
        return True
    ended.cancel()
    return False


async def first_to_end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the first of several parts of a process to end, most of which only an error ends.

    Raises:
        Exception: What that one raised: without it, the process would seem to do what it does not.
    """
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def stop_requested() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set, in the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
