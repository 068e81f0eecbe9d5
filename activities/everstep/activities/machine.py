"""Orders to one machine: run by the machine's own agent, on the machine's own task queue."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from temporalio import activity

from everstep.activities.failure import as_failures
from everstep.activities.heartbeat import beating
from everstep.core.orders import (
    MachineReport,
    PrepareOrder,
    PrepareReport,
    RestoreOrder,
    RestoreReport,
    StartOrder,
    StartReport,
    StopOrder,
    StorageReport,
)
from everstep.workflows.ports import MachinePort

T = TypeVar("T")


class Machine(Protocol):
    """What an agent offers; `everstep.agent.machine.Machine` is one."""

    async def stop(self, order: StopOrder) -> MachineReport:
        """End the ranks of an attempt and of older ones."""
        ...

    async def restore(self, order: RestoreOrder) -> RestoreReport:
        """Fetch missing shards."""
        ...

    async def look_at_storage(self) -> StorageReport:
        """See what is in storage."""
        ...

    async def start(self, order: StartOrder) -> StartReport:
        """Start the ranks of an attempt."""
        ...

    async def prepare(self, order: PrepareOrder) -> PrepareReport:
        """See whether a code version can run."""
        ...


class MachineActivities(MachinePort):
    """Carries orders to the machine on which this process runs.

    Args:
        machine: The machine itself.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @activity.defn(name="machine.stop")
    async def stop(self, order: StopOrder) -> MachineReport:
        """Stop the ranks of an attempt.

        Effect: kills every rank of the attempt and of older ones, with their children.
        Idempotent by: the attempt; a second call returns the first report.
        Heartbeats: yes.
        Gives up when: the machine already serves a newer attempt (`StaleAttempt`).
        """
        return await _order(self._machine.stop(order))

    @activity.defn(name="machine.restore")
    async def restore(self, order: RestoreOrder) -> RestoreReport:
        """Fetch shards from other machines' memory, or from storage.

        Effect: this machine's memory holds the named shards at the named step.
        Idempotent by: what memory holds already is not fetched again from another machine; from
            storage it is, and is the same.
        Heartbeats: yes.
        Gives up when: never by itself; a shard that cannot be had is named in the report.
        """
        return await _order(self._machine.restore(order))

    @activity.defn(name="machine.look_at_storage")
    async def look_at_storage(self) -> StorageReport:
        """See what is in storage.

        Effect: none.
        Idempotent by: having none.
        Heartbeats: yes.
        Gives up when: the job has no storage tier; a storage that cannot be read is reported.
        """
        return await _order(self._machine.look_at_storage())

    @activity.defn(name="machine.start")
    async def start(self, order: StartOrder) -> StartReport:
        """Start the ranks of an attempt.

        Effect: one process a rank; shards of later steps than the restored one are dropped.
        Idempotent by: the attempt; a second call returns the first report.
        Heartbeats: yes.
        Gives up when: the machine already serves a newer attempt (`StaleAttempt`).
        """
        return await _order(self._machine.start(order))

    @activity.defn(name="machine.prepare")
    async def prepare(self, order: PrepareOrder) -> PrepareReport:
        """See whether a code version can run here, while another runs.

        Effect: the version's files are in the page cache; where the job has a command that makes
            versions ready, it has run in a copy of the machine's own.
        Idempotent by: the version's content; what is ready is not made again.
        Heartbeats: yes.
        Gives up when: never by itself; what is wrong with the version is in the report.
        """
        return await _order(self._machine.prepare(order))


async def _order(carried_out: Coroutine[Any, Any, T]) -> T:
    """Carry an order out to its end even when the caller no longer waits for it.

    A half-carried-out order would leave a state that no report describes; the next order waits.
    """
    with as_failures():
        async with beating():
            return await asyncio.shield(asyncio.ensure_future(carried_out))
