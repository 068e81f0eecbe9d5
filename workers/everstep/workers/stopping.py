"""How our processes end: on SIGTERM in order, and with their parent in any case."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine

from everstep.agent.process import die_with


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; call it from the main thread.

    The first process of a container has none that it can see, and is ended with the container.
    """
    if parent := os.getppid():
        die_with(parent)


async def until_stopped(stop: asyncio.Event, other: Coroutine[None, None, None] | None) -> None:
    """Wait until a stop is requested, or something else comes to its end.

    Raises:
        Exception: What the other raised.
    """
    if other is None:
        await stop.wait()
        return
    stopped, ended = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(other)
    await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if ended.done():
        ended.result()
    else:
        ended.cancel()


def stop_requested() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set, in the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
