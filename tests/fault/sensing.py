"""A monitor that runs in the test's own event loop, and what it has told so far."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

from everstep.agent.probes.monitor import Monitor, MonitorConfig
from everstep.core.model import Alert
from everstep.core.vocabulary import Verdict

PATIENCE_S = 20.0


class Sensing:
    """What a monitor has told."""

    def __init__(self, config: MonitorConfig) -> None:
        self.alerts: list[Alert] = []
        self.monitor = Monitor(config, self.alerts.append)

    async def until(self, condition: Callable[[], bool], within_s: float = PATIENCE_S) -> float:
        """Wait for a condition; returns after how many seconds it held."""
        began_s = time.monotonic()
        while not condition():
            assert time.monotonic() - began_s < within_s, (self.alerts, self.monitor.inspections())
            await asyncio.sleep(0.002)
        return time.monotonic() - began_s

    def verdict(self, item: str, subject: str | None = None) -> Verdict | None:
        """What the last look at something said, or None before the first."""
        for found in self.monitor.inspections():
            if found.item == item and subject in (None, found.subject):
                return found.verdict
        return None

    def about(self, part: str) -> list[Alert]:
        """Alerts whose text names something."""
        return [alert for alert in self.alerts if part in alert.detail]


@contextlib.asynccontextmanager
async def sensing(config: MonitorConfig) -> AsyncGenerator[Sensing]:
    """Run a monitor until the block ends."""
    seen = Sensing(config)
    task = asyncio.create_task(seen.monitor.run())
    try:
        yield seen
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
