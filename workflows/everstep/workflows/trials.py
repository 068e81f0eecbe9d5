"""Trials of a replay, side by side: groups of machines, of which each is over when one has failed.

Of many machines, whole groups are put together into batches, each held by a child workflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core import names
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.core.vocabulary import Verdict
from everstep.workflows import ordering
from everstep.workflows.batches import Refusal
from everstep.workflows.messages import JobInput


async def hold(
    job: JobInput, orders: Sequence[ReplayOrder], ends_at_first_failure: bool
) -> list[list[ReplayReport]]:
    """Hold one trial an order, all at the same time.

    Args:
        job: The job.
        orders: One a group; no machine is in two.
        ends_at_first_failure: Whether others of a group are not waited for when one has failed.

    Returns:
        For each order the reports, in the order of its machines.
    """
    name, most = job.spec.name, job.machines_per_batch
    if sum(len(order.machines) for order in orders) <= most or not workflow.patched(
        "replay-in-batches"
    ):
        return list(
            await asyncio.gather(*(hold_one(name, o, ends_at_first_failure) for o in orders))
        )
    parts = [
        [(info.machine, order) for order in part for info in order.machines]
        for part in _batches(orders, most)
    ]
    answers = await ordering.in_batches(name, ordering.REPLAY, parts)
    reports = iter(_told(answer) for answer in answers)
    return [[next(reports) for _ in order.machines] for order in orders]


async def hold_one(
    job: str, order: ReplayOrder, ends_at_first_failure: bool, at_once: int = 0
) -> list[ReplayReport]:
    """All reports of a trial, which is over for the others when one machine has failed.

    They may wait for its ranks until the deadline.
    """
    calls = [
        asyncio.create_task(_one(job, info.machine, order, at_once)) for info in order.machines
    ]
    try:
        await workflow.wait_condition(
            lambda: (
                all(call.done() for call in calls)
                or (ends_at_first_failure and any(map(_has_failed, calls)))
            )
        )
    finally:
        for call in calls:
            call.cancel()
    return await asyncio.gather(*calls)


def by_trial(orders: Sequence[ReplayOrder]) -> list[ReplayOrder]:
    """Each trial once, of orders that all of its machines have been given."""
    return list({order.number: order for order in orders}.values())


async def _one(job: str, machine: str, order: ReplayOrder, at_once: int) -> ReplayReport:
    """One machine's report; no answer is an answer that tells nothing."""
    kind = ordering.REPLAY
    config = (
        kind.options(order)
        .amid(at_once)
        .config(kind.text(machine, order), names.machine_queue(job, machine))
    )
    # The next trial needs the machine.
    config["cancellation_type"] = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    try:
        return await workflow.execute_activity_method(kind.activity, order, **config)
    except ActivityError as error:
        return _told(Refusal(machine, ordering.why(error)))


def _told(answer: ReplayReport | Refusal) -> ReplayReport:
    if isinstance(answer, ReplayReport):
        return answer
    return ReplayReport(answer.machine, Verdict.UNOBSERVABLE, f"no answer: {answer.reason}")


def _batches(orders: Sequence[ReplayOrder], most: int) -> Iterator[list[ReplayOrder]]:
    """Whole groups, as many as fit; one that does not fit has a batch of its own."""
    part: list[ReplayOrder] = []
    for order in orders:
        if part and sum(len(one.machines) for one in [*part, order]) > most:
            yield part
            part = []
        part.append(order)
    if part:
        yield part


def _has_failed(call: asyncio.Task[ReplayReport]) -> bool:
    done = call.done() and not call.cancelled() and call.exception() is None
    return done and call.result().verdict is Verdict.FAULTY
