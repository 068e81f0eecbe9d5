"""Where a machine's ranks stand: run by its own agent, on the machine's own task queue."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from pydantic import TypeAdapter
from temporalio import activity

from everstep.activities.evidence import EvidenceStore
from everstep.activities.failure import as_failures
from everstep.activities.heartbeat import beating
from everstep.core.orders import RankStacks, TraceOrder, TraceReport
from everstep.core.stacks.dump import RankTrace
from everstep.workflows.ports import TracePort

MAX_DETAIL_CHARS = 200

MANIFEST = TypeAdapter(tuple[RankStacks, ...])
"""What lies under a report's manifest: which dumps are whose."""


class Tracing(Protocol):
    """Who can ask ranks; `everstep.agent.machine.Machine` is one."""

    async def trace(self, order: TraceOrder) -> tuple[int, dict[int, RankTrace]]:
        """Ask every rank where it stands."""
        ...


class TraceActivities(TracePort):
    """Keeps what ranks say as evidence, and tells where.

    Args:
        name: The machine on which this process runs.
        machine: The machine itself.
        evidence: Where dumps are kept.
    """

    def __init__(self, name: str, machine: Tracing, evidence: EvidenceStore) -> None:
        self._name = name
        self._machine = machine
        self._evidence = evidence

    @activity.defn(name="machine.trace")
    async def trace(self, order: TraceOrder) -> TraceReport:
        """Ask every rank of this machine where it stands.

        Effect: one dump a rank, and a list of them, lie in the evidence store; ranks are stopped
            for milliseconds.
        Idempotent by: the dump's digest; a second call asks again and keeps what is new.
        Heartbeats: yes.
        Gives up when: another attempt runs here (`StaleAttempt`); a process that does not answer
            is named in the report instead.
        """
        with as_failures():
            async with beating():
                at_s = time.time()
                attempt, traces = await self._machine.trace(order)
                ranks = await asyncio.gather(
                    *(asyncio.to_thread(self._keep, rank, traces[rank]) for rank in sorted(traces))
                )
                entries = tuple(ranks)
                manifest = await asyncio.to_thread(self._evidence.put, MANIFEST.dump_json(entries))
                return TraceReport(self._name, attempt, at_s, self._evidence.url, entries, manifest)

    def _keep(self, rank: int, trace: RankTrace) -> RankStacks:
        digest = self._evidence.put(trace.dump)
        recorder = "" if trace.recorder is None else self._evidence.put(trace.recorder)
        detail = trace.detail[:MAX_DETAIL_CHARS]
        return RankStacks(rank, trace.answer.value, detail, digest, recorder)
