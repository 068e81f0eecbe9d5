"""What an `OrderMachines` workflow is given and answers: one order each to the machines of a batch.

The workflow is started by its name, so that another implementation of the same signature can stand
in for it: a simulated cluster answers for all machines of a batch at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.orders import (
    CheckOrder,
    CheckResult,
    MachineReport,
    PrepareOrder,
    PrepareReport,
    RestoreOrder,
    RestoreReport,
    StartOrder,
    StartReport,
    StopOrder,
    TraceOrder,
    TraceReport,
)
from everstep.core.trial import ReplayOrder, ReplayReport

ORDER_MACHINES = "OrderMachines"
"""Name of the workflow type: `run(batch: MachineOrders) -> MachineReports`."""

GIVE_UP = "give_up"
"""Name of its signal, a list of machines that will not answer any more. A batch that does not
listen to it only lasts longer."""

MACHINES_PER_BATCH = 100
"""A job of no more machines is ordered by its own workflows; a larger one by a child workflow for
each so many. An order leaves 3 events and some kilobytes a machine in the history of whoever gives
it, so an incident of 100 machines stays in the hundreds of events, and one of 1,200 as well."""


@dataclass(frozen=True, slots=True)
class MachineOrders:
    """The same kind of order to each machine of a batch.

    All that is ordered stands in one of the last fields, an entry a machine; the others are empty.

    Attributes:
        job: Name of the job.
        machines: Names of the machines, each once.
        at_once: How many are ordered at the same time, those of other batches included.
        stop: End the ranks.
        restore: Make memory ready, from other machines or from storage.
        start: Start the ranks.
        check: Test the machine, alone or with the peers that the order names.
        prepare: Look at a code version.
        trace: Tell where ranks stand.
        replay: Take part in a trial; all machines of a trial are in one batch, and have one order.
    """

    job: str
    machines: tuple[str, ...]
    at_once: int = 0
    stop: tuple[StopOrder, ...] = ()
    restore: tuple[RestoreOrder, ...] = ()
    start: tuple[StartOrder, ...] = ()
    check: tuple[CheckOrder, ...] = ()
    prepare: tuple[PrepareOrder, ...] = ()
    trace: tuple[TraceOrder, ...] = ()
    replay: tuple[ReplayOrder, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A machine that could not do what it was ordered to, and why."""

    machine: str
    reason: str


@dataclass(frozen=True, slots=True)
class MachineReports:
    """What the machines of a batch answered.

    Attributes:
        refused: Machines that did not answer or could not do it; never a failure of the batch.
        stop: Of all others, if they were to stop; in any order, each names its machine.
        restore: Likewise.
        start: Likewise.
        check: Likewise.
        prepare: Likewise.
        trace: Likewise, without entries of ranks: they lie under the report's manifest.
        replay: Likewise; a trial ends for all of its machines when it has failed on one.
    """

    refused: tuple[Refusal, ...] = ()
    stop: tuple[MachineReport, ...] = ()
    restore: tuple[RestoreReport, ...] = ()
    start: tuple[StartReport, ...] = ()
    check: tuple[CheckResult, ...] = ()
    prepare: tuple[PrepareReport, ...] = ()
    trace: tuple[TraceReport, ...] = ()
    replay: tuple[ReplayReport, ...] = ()
