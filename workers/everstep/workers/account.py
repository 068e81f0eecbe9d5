"""The job's ledger while it runs, for the analyzer's metrics: its steps, and what incidents say.

Soft state: after a restart it is made again from the log of steps and the workflows of incidents.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import timedelta

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from everstep.core.meter import Meter
from everstep.core.model import StepSeen
from everstep.core.record import IncidentRecord
from everstep.core.report import WINDOW_S
from everstep.core.vocabulary import Spent
from everstep.workers import handles
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob

logger = logging.getLogger(__name__)

ASK_EVERY_S = 10.0
"""Nobody scrapes much more often, and each question is a workflow task."""

ANSWER_PATIENCE = timedelta(seconds=5)


class Account:
    """Where a job's time went so far.

    Args:
        steps: Those of before, in order of time.
    """

    def __init__(self, steps: Iterable[StepSeen] = ()) -> None:
        self._meter = Meter(WINDOW_S)
        self._from_s: float | None = None
        self._records: dict[int, IncidentRecord] = {}
        self._settled = 0
        for seen in steps:
            self._meter.step(seen)

    def step(self, seen: StepSeen) -> None:
        """All ranks have finished a step."""
        self._meter.step(seen)

    def told(self, from_s: float, records: Iterable[IncidentRecord], active: bool) -> None:
        """What the job says: when it was started, and incidents as they stand.

        Args:
            from_s: When.
            records: Those that are not settled.
            active: Whether one is open.
        """
        self._from_s = from_s
        self._records |= {record.incident: record for record in records}
        if active:
            return
        self._meter.settle(self._unsettled(), from_s)
        self._settled = max(self._records, default=self._settled)
        # The next failure may have come before training went on after this one.
        until_s = self._meter.until_s or from_s
        self._records = {
            number: record
            for number, record in self._records.items()
            if any(mark.at_s >= until_s for mark in record.marks)
        }

    def spent(self) -> dict[Spent, float]:
        """Seconds by class until now; empty before the job was started."""
        if self._from_s is None:
            return {}
        return self._meter.spent(self._unsettled(), self._from_s, self._now_s())

    def recent_ratio(self) -> float:
        """ETTR of the newest hour, 0 to 1."""
        now_s = self._now_s()
        return self._meter.recent_ratio(now_s if self._from_s is None else self._from_s, now_s)

    async def follow(self, client: Client, job: str) -> None:
        """Ask the job for what only incidents know, for ever."""
        while True:
            try:
                await self._ask(client, job)
            except (RPCError, WorkflowQueryFailedError) as error:
                logger.info("the job cannot be asked: %s", error)
            await asyncio.sleep(ASK_EVERY_S)

    async def _ask(self, client: Client, job: str) -> None:
        handle = handles.of_job(client, job)
        status = await handle.query(RunJob.status, rpc_timeout=ANSWER_PATIENCE)
        if status.started_at_s is None:
            return
        records: list[IncidentRecord] = []
        for number in range(self._settled + 1, status.incidents + 1):
            incident = handles.of_incident(client, job, number)
            try:
                query = incident.query(ResolveIncident.record, rpc_timeout=ANSWER_PATIENCE)
                records.append(await query)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                logger.warning("incident %d is kept no more; its time counts as lost", number)
        self.told(status.started_at_s, records, status.active_incident is not None)

    def _unsettled(self) -> list[IncidentRecord]:
        return [self._records[number] for number in sorted(self._records)]

    def _now_s(self) -> float:
        return max(time.time(), self._meter.until_s or 0.0)
