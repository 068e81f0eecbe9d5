"""The one place through which orders go out to many machines at once.

Few machines are ordered by the workflow that asks, an activity each. Of more than a batch, each
batch is ordered by a child workflow (`order_machines`) with a history of its own, since an order
leaves 3 events and its report a machine. Runs inside a workflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ChildWorkflowError,
    FailureError,
    TimeoutError,
    TimeoutType,
)
from temporalio.workflow import ChildWorkflowCancellationType

from everstep.core import names
from everstep.core.orders import (
    CheckOrder,
    CheckResult,
    MachineReport,
    PrepareReport,
    RestoreOrder,
    RestoreReport,
    StartReport,
    TraceReport,
)
from everstep.core.stacks.words import ranks_text
from everstep.core.trial import ReplayReport
from everstep.workflows import options
from everstep.workflows.batches import (
    GIVE_UP,
    ORDER_MACHINES,
    MachineOrders,
    MachineReports,
    Refusal,
)
from everstep.workflows.options import CallOptions
from everstep.workflows.ports import CheckPort, MachinePort, TracePort

O = TypeVar("O")  # noqa: E741 - an order
R = TypeVar("R", bound="Report")

Report = (
    MachineReport
    | RestoreReport
    | StartReport
    | CheckResult
    | PrepareReport
    | TraceReport
    | ReplayReport
)


@dataclass(frozen=True)
class Kind(Generic[O, R]):
    """One kind of order.

    Attributes:
        name: Its field in `MachineOrders` and `MachineReports`.
        activity: What carries it out.
        options: By what time-outs and retries.
        text: What the web UI shows of one machine's.
        pack: Orders of a batch.
        orders: What `pack` has put there.
        report: Reports of a batch.
        reports: What `report` has put there.
        cancellation: Whether whoever gives an order to a batch up waits until machines have heard.
    """

    name: str
    activity: Callable[[Any, O], Awaitable[R]]
    options: Callable[[O], CallOptions]
    text: Callable[[str, O], str]
    pack: Callable[[str, tuple[str, ...], tuple[O, ...]], MachineOrders]
    orders: Callable[[MachineOrders], tuple[O, ...]]
    report: Callable[[tuple[R, ...]], MachineReports]
    reports: Callable[[MachineReports], tuple[R, ...]]
    cancellation: ChildWorkflowCancellationType = ChildWorkflowCancellationType.TRY_CANCEL


def _restore_text(machine: str, order: RestoreOrder) -> str:
    if order.stored is not None:
        return f"bring step {order.step} from storage to {machine}"
    of_loans = [rank for loan in order.loans for rank in loan.ranks]
    ranks = ranks_text([*(pull.rank for pull in order.pulls), *of_loans])
    return f"fetch step {order.step} of {ranks} to {machine}"


def _check_text(machine: str, order: CheckOrder) -> str:
    others = ", ".join(peer.machine for peer in order.peers if peer.machine != machine)
    return f"{order.check} test of {machine}{f' with {others}' if others else ''}"


STOP = Kind(
    "stop",
    MachinePort.stop,
    lambda _: options.STOP,
    lambda machine, order: f"stop the ranks of attempt {order.attempt} on {machine}",
    lambda job, machines, orders: MachineOrders(job, machines, stop=orders),
    lambda batch: batch.stop,
    lambda reports: MachineReports(stop=reports),
    lambda answer: answer.stop,
)
RESTORE = Kind(
    "restore",
    MachinePort.restore,
    lambda order: options.RESTORE if order.stored is None else options.RESTORE_FROM_STORAGE,
    _restore_text,
    lambda job, machines, orders: MachineOrders(job, machines, restore=orders),
    lambda batch: batch.restore,
    lambda reports: MachineReports(restore=reports),
    lambda answer: answer.restore,
)
START = Kind(
    "start",
    MachinePort.start,
    lambda _: options.START,
    lambda machine, order: (
        f"start attempt {order.attempt} on {machine} from step {order.restore_step}"
    ),
    lambda job, machines, orders: MachineOrders(job, machines, start=orders),
    lambda batch: batch.start,
    lambda reports: MachineReports(start=reports),
    lambda answer: answer.start,
)
CHECK = Kind(
    "check",
    CheckPort.check,
    lambda order: options.check(order.deadline_s),
    _check_text,
    lambda job, machines, orders: MachineOrders(job, machines, check=orders),
    lambda batch: batch.check,
    lambda reports: MachineReports(check=reports),
    lambda answer: answer.check,
)
PREPARE = Kind(
    "prepare",
    MachinePort.prepare,
    lambda _: options.PREPARE,
    lambda machine, order: f"see whether {order.directory} can run on {machine}",
    lambda job, machines, orders: MachineOrders(job, machines, prepare=orders),
    lambda batch: batch.prepare,
    lambda reports: MachineReports(prepare=reports),
    lambda answer: answer.prepare,
)
TRACE = Kind(
    "trace",
    TracePort.trace,
    lambda _: options.TRACE,
    lambda machine, _: f"ask the ranks of {machine} where they stand",
    lambda job, machines, orders: MachineOrders(job, machines, trace=orders),
    lambda batch: batch.trace,
    # What is said of each rank lies under the manifest.
    lambda reports: MachineReports(trace=tuple(replace(r, ranks=()) for r in reports)),
    lambda answer: answer.trace,
)

REPLAY = Kind(
    "replay",
    CheckPort.replay,
    lambda order: options.check(order.deadline_s),
    lambda _, order: f"replay on {', '.join(one.machine for one in order.machines)}",
    lambda job, machines, orders: MachineOrders(job, machines, replay=orders),
    lambda batch: batch.replay,
    lambda reports: MachineReports(replay=reports),
    lambda answer: answer.replay,
    # The next order needs the machines.
    ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
)

KINDS: tuple[Kind[Any, Any], ...] = (STOP, RESTORE, START, CHECK, PREPARE, TRACE)


def nobody(machine: str) -> bool:
    """Of no machine is anything known that makes waiting for it vain."""
    return False


async def order(
    job: str,
    machines_per_batch: int,
    kind: Kind[O, R],
    orders: Sequence[tuple[str, O]],
    gone: Callable[[str], bool] = nobody,
) -> list[R | Refusal]:
    """Order machines side by side, each within its own time-outs and retries.

    Args:
        job: Name of the job.
        machines_per_batch: How many one workflow orders by itself.
        kind: What is ordered.
        orders: Machines, each once, with their orders.
        gone: Whether it is known by now that a machine will not answer; it is not waited for then.

    Returns:
        For each order in turn the report, or why there is none.
    """
    if len(orders) <= machines_per_batch or not workflow.patched("orders-in-batches"):
        return await one_by_one(job, kind, orders, gone)
    parts = [
        orders[at : at + machines_per_batch] for at in range(0, len(orders), machines_per_batch)
    ]
    return await in_batches(job, kind, parts, gone)


async def in_batches(
    job: str,
    kind: Kind[O, R],
    parts: Sequence[Sequence[tuple[str, O]]],
    gone: Callable[[str], bool] = nobody,
) -> list[R | Refusal]:
    """Order machines by a child workflow for each part; as `order`."""
    at_once = sum(map(len, parts))
    batches = [replace(_packed(job, kind, part), at_once=at_once) for part in parts]
    # A workflow may give the same kind of order again.
    what = f"{kind.name}-{workflow.uuid4().hex[:8]}"
    parent = workflow.info().workflow_id
    answers = await asyncio.gather(
        *(
            _in_batch(names.batch_workflow_id(parent, what, number), batch, kind, gone)
            for number, batch in enumerate(batches, 1)
        )
    )
    return [answer for part in answers for answer in part]


async def one_by_one(
    job: str,
    kind: Kind[O, R],
    orders: Sequence[tuple[str, O]],
    gone: Callable[[str], bool],
    at_once: int = 0,
) -> list[R | Refusal]:
    """Order machines by activities of the workflow that calls this; as `order`.

    Args:
        job: See `order`.
        kind: See `order`.
        orders: See `order`.
        gone: See `order`.
        at_once: How many machines are ordered at the same time, these included.
    """

    async def one(machine: str, what: O) -> R | Refusal:
        config = (
            kind.options(what)
            .amid(at_once)
            .config(kind.text(machine, what), names.machine_queue(job, machine))
        )
        try:
            return await workflow.execute_activity_method(kind.activity, what, **config)
        except ActivityError as error:
            return Refusal(machine, why(error))

    async def unless_gone(machine: str, what: O) -> R | Refusal:
        if gone is nobody:
            return await one(machine, what)
        task = asyncio.create_task(one(machine, what))
        await workflow.wait_condition(lambda: task.done() or gone(machine))
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return Refusal(machine, "it is gone")
        return await task

    return await asyncio.gather(*(unless_gone(machine, what) for machine, what in orders))


def _packed(job: str, kind: Kind[O, R], orders: Sequence[tuple[str, O]]) -> MachineOrders:
    machines = tuple(machine for machine, _ in orders)
    return kind.pack(job, machines, tuple(what for _, what in orders))


async def _in_batch(
    identifier: str,
    orders: MachineOrders,
    kind: Kind[O, R],
    gone: Callable[[str], bool],
) -> list[R | Refusal]:
    machines = orders.machines
    batch = await workflow.start_child_workflow(
        ORDER_MACHINES,
        orders,
        id=identifier,
        result_type=MachineReports,
        task_timeout=options.workflow_task_timeout(orders.at_once),
        cancellation_type=kind.cancellation,
        static_summary=f"{kind.name}: {machines[0]} to {machines[-1]}",
    )
    waited_for = list(machines) if gone is not nobody else []
    try:
        while not batch.done():
            await workflow.wait_condition(lambda: batch.done() or any(map(gone, waited_for)))
            lost = [machine for machine in waited_for if gone(machine)]
            for machine in lost:
                waited_for.remove(machine)
            if lost and not batch.done():
                await _tell(batch, lost)
        answer = await batch
    except ChildWorkflowError as error:
        return [Refusal(machine, f"its batch ended: {error.cause}") for machine in machines]
    except asyncio.CancelledError:
        batch.cancel()
        await asyncio.gather(batch, return_exceptions=True)
        raise
    found: dict[str, R | Refusal] = {refusal.machine: refusal for refusal in answer.refused}
    found.update({report.machine: report for report in kind.reports(answer)})
    unheard = "its batch says nothing of it"
    return [found.get(machine) or Refusal(machine, unheard) for machine in machines]


async def _tell(
    batch: workflow.ChildWorkflowHandle[Any, MachineReports], lost: Sequence[str]
) -> None:
    try:
        await batch.signal(GIVE_UP, list(lost))
    except FailureError as error:
        workflow.logger.info("a batch has ended before it was told of %s: %s", lost, error)


_LATE = {
    TimeoutType.SCHEDULE_TO_START: "it did not take the order in time",
    TimeoutType.HEARTBEAT: "it fell silent over the order",
    TimeoutType.START_TO_CLOSE: "it did not finish in time",
    TimeoutType.SCHEDULE_TO_CLOSE: "it did not finish in time",
}


def why(error: ActivityError) -> str:
    """The reason inside an activity error, whose own text is always the same sentence."""
    cause = error.cause
    if isinstance(cause, TimeoutError) and cause.type is not None:
        return _LATE[cause.type]
    return str(cause) if cause is not None else str(error)
