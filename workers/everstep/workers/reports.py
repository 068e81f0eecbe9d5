"""Signals from observers to the job's workflow: in order, batched, until delivered."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep.core import evidence, names
from everstep.core.model import Alert, CopyDamaged, MachineInfo, RanksFinished
from everstep.core.vocabulary import Symptom

logger = logging.getLogger(__name__)

Report = Alert | MachineInfo | RanksFinished | CopyDamaged

FIRST_RETRY_S = 0.2
"""The server is away for a second or so when it restarts; the job's workflow may not exist yet."""

LAST_RETRY_S = 5.0
"""A server that a thousand agents ask at once, and again at once, never gets to answer."""


class Reporter:
    """Delivers an observer's reports to the job; the job drops what it gets twice.

    Args:
        client: Connected client.
        job: Name of the job.
    """

    def __init__(self, client: Client, job: str) -> None:
        self._handle = client.get_workflow_handle(names.job_workflow_id(job))
        self._waiting: asyncio.Queue[Report] = asyncio.Queue()
        self.alerts: Counter[Symptom] = Counter()
        """How many alerts were handed over, by symptom."""

    def put(self, report: Report) -> None:
        """Hand over one report; returns at once."""
        if isinstance(report, Alert):
            self.alerts[report.symptom] += 1
        self._waiting.put_nowait(report)

    async def run(self) -> None:
        """Deliver for ever."""
        while True:
            batch = [await self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            await self._deliver(batch)

    async def _deliver(self, batch: Sequence[Report]) -> None:
        alerts = evidence.gathered([report for report in batch if isinstance(report, Alert)])
        if alerts:
            await self._signal("report_alerts", alerts)
        for report in batch:
            if isinstance(report, MachineInfo):
                await self._signal("machine_joined", report)
            elif isinstance(report, RanksFinished):
                await self._signal("ranks_finished", report)
            elif isinstance(report, CopyDamaged):
                await self._signal("copy_damaged", report)

    async def _signal(
        self, name: str, value: list[Alert] | MachineInfo | RanksFinished | CopyDamaged
    ) -> None:
        pause_s = FIRST_RETRY_S
        while True:
            try:
                await self._handle.signal(name, value)
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND and "completed" in str(error):
                    logger.info("the job has ended; %s is not needed any more", name)
                    return
                logger.warning("%s not delivered yet: %s", name, error)
                # At any time of the pause, so that those who failed together do not ask together.
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause_s)  # noqa: S311 - no secret
                pause_s = min(LAST_RETRY_S, 2 * pause_s)
            else:
                return
