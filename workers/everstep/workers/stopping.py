"""How our processes end: on SIGTERM in order, and with their parent in any case."""

from __future__ import annotations

import asyncio
import os
import signal

from everstep.agent.process import die_with


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; call it from the main thread."""
    die_with(os.getppid())


def stop_requested() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set, in the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
