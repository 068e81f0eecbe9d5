"""The workflow that orders the machines of one batch, so that its parent's history stays short."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from temporalio import workflow

from everstep.workflows import ordering, trials
from everstep.workflows.batches import (
    GIVE_UP,
    ORDER_MACHINES,
    MachineOrders,
    MachineReports,
    Refusal,
)


@workflow.defn(name=ORDER_MACHINES)
class OrderMachines:
    """Orders each machine of a batch by an activity on its own queue, and gathers the reports.

    Signal: `give_up` (machines that are known to be gone). A machine that fails is a refusal in
    the answer; the workflow itself fails only if it is ended from outside.
    """

    @workflow.init
    def __init__(self, batch: MachineOrders) -> None:
        self._gone: list[str] = []

    @workflow.signal(name=GIVE_UP)
    def give_up(self, machines: list[str]) -> None:
        """These will not answer any more."""
        self._gone += machines

    @workflow.run
    async def run(self, batch: MachineOrders) -> MachineReports:
        """Order all machines side by side."""
        if batch.replay:
            held = (
                trials.hold_one(batch.job, order, True, batch.at_once)
                for order in trials.by_trial(batch.replay)
            )
            told = [report for of_trial in await asyncio.gather(*held) for report in of_trial]
            return MachineReports(replay=tuple(told))
        kind = next((k for k in ordering.KINDS if k.orders(batch)), None)
        if kind is None:
            return MachineReports()
        found = await ordering.one_by_one(
            batch.job,
            kind,
            list(zip(batch.machines, kind.orders(batch), strict=True)),
            # Only who is to stop is known to be gone before its order has failed.
            self._gone.__contains__ if batch.stop else ordering.nobody,
            batch.at_once,
        )
        refused = tuple(answer for answer in found if isinstance(answer, Refusal))
        reports = tuple(answer for answer in found if not isinstance(answer, Refusal))
        return replace(kind.report(reports), refused=refused)
