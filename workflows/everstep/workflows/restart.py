"""Restart in place: the orders that take a job from an assignment to running ranks.

Shared by the job workflow (first start) and the incident workflow (every later one). Runs inside a
workflow: deterministic, all effects through ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core import names
from everstep.core.model import Assignment, MachineInfo, StepSeen
from everstep.core.orders import MachineReport, Pull, RankStart, RestoreOrder, StartOrder, StopOrder
from everstep.core.placement import BackupPlan
from everstep.core.restore import RestorePlan
from everstep.workflows import options
from everstep.workflows.messages import AwaitStep, JobInput
from everstep.workflows.ports import AnalysisPort, MachinePort

MAX_MACHINES_TOLD = 8
"""In one line of a story."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A machine that could not do what it was ordered to, and why."""

    machine: str
    reason: str


class MachinesRefusedError(Exception):
    """Some machines did not carry out an order.

    Args:
        refusals: One entry a machine, by slot.
    """

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__(tuple(refusals))
        self.refusals = tuple(refusals)

    def __str__(self) -> str:
        return "; ".join(f"{r.machine}: {r.reason}" for r in self.refusals)


async def stop(job: JobInput, machine: MachineInfo, attempt: int) -> MachineReport:
    """Stop one machine's ranks and learn how they ended and what its memory holds.

    Raises:
        ActivityError: The machine did not answer or could not do it.
    """
    return await workflow.execute_activity_method(
        MachinePort.stop,
        StopOrder(attempt),
        **options.STOP.config(
            f"stop the ranks of attempt {attempt} on {machine.machine}",
            names.machine_queue(job.spec.name, machine.machine),
        ),
    )


async def restore(job: JobInput, assignment: Assignment, plan: RestorePlan) -> None:
    """Let every machine that lacks a shard fetch it from a machine that has it.

    Raises:
        MachinesRefusedError: Some machine could not, or some shard did not arrive whole.
    """
    fetching = {**plan.pulls, **plan.loans}
    pulling = [info for info in assignment.slots if fetching.get(info.machine)]
    refusals: list[Refusal] = []

    async def one(info: MachineInfo) -> None:
        pulls, loans = plan.pulls.get(info.machine, ()), plan.loans.get(info.machine, ())
        ranks = [*(pull.rank for pull in pulls), *(rank for loan in loans for rank in loan.ranks)]
        report = await workflow.execute_activity_method(
            MachinePort.restore,
            RestoreOrder(assignment.attempt, plan.step, tuple(pulls), loans=tuple(loans)),
            **options.RESTORE.config(
                f"fetch step {plan.step} of ranks {ranks_text(ranks)} to {info.machine}",
                names.machine_queue(job.spec.name, info.machine),
            ),
        )
        refusals.extend(Refusal(info.machine, f"rank {r}: {why}") for r, why in report.failed)

    refusals.extend(await all_of([(info.machine, one(info)) for info in pulling]))
    if refusals:
        raise MachinesRefusedError(refusals)


async def start(
    job: JobInput,
    assignment: Assignment,
    backup: BackupPlan,
    restore_step: int,
    run: str = "",
    stored: str = "",
) -> None:
    """Start every rank of the assignment from `restore_step`.

    Args:
        job: The job.
        assignment: Who runs what.
        backup: Who keeps whose copy.
        restore_step: Where to start.
        run: The job's run.
        stored: The checkpoint in storage that ranks read it from, or empty.

    Raises:
        MachinesRefusedError: Some machine could not.
    """

    async def one(slot: int, info: MachineInfo) -> None:
        await workflow.execute_activity_method(
            MachinePort.start,
            replace(
                start_order(job, assignment, backup, slot, restore_step), run=run, stored=stored
            ),
            **options.START.config(
                f"start attempt {assignment.attempt} on {info.machine} from step {restore_step}",
                names.machine_queue(job.spec.name, info.machine),
            ),
        )

    refusals = await all_of(
        [(info.machine, one(slot, info)) for slot, info in enumerate(assignment.slots)]
    )
    if refusals:
        raise MachinesRefusedError(refusals)


def start_order(
    job: JobInput, assignment: Assignment, backup: BackupPlan, slot: int, restore_step: int
) -> StartOrder:
    """What the machine in a slot must start, and whose copies it must keep."""
    layout = job.spec.layout()
    master = assignment.slots[0]
    ranks = layout.ranks_of(slot)

    def holder(rank: int) -> MachineInfo | None:
        held_by = backup.holder.get(rank)
        return None if held_by is None else assignment.slots[layout.machine_of(held_by)]

    return StartOrder(
        attempt=assignment.attempt,
        slot=slot,
        ranks=tuple(RankStart(rank, local, holder(rank)) for local, rank in enumerate(ranks)),
        held_ranks=backup.held_by(layout, slot),
        world_size=layout.world_size,
        num_machines=layout.num_machines,
        master_host=master.host,
        master_port=master.rendezvous_port,
        restore_step=restore_step,
        code_directory=assignment.code_directory or job.code_directory,
        settings=assignment.settings,
    )


async def await_step(
    job: JobInput, attempt: int, step: int, limit: timedelta | None, summary: str
) -> StepSeen:
    """Wait until every rank of the attempt has finished `step`.

    Raises:
        ActivityError: It did not happen within `limit`.
    """
    return await workflow.execute_activity_method(
        AnalysisPort.await_step,
        AwaitStep(attempt, step),
        **options.await_step(limit).config(summary, names.analyzer_queue(job.spec.name)),
    )


async def all_of(calls: Sequence[tuple[str, Awaitable[None]]]) -> list[Refusal]:
    """Run all calls to their ends, side by side, and list those that failed."""
    results = await asyncio.gather(*(call for _, call in calls), return_exceptions=True)
    refusals: list[Refusal] = []
    for (machine, _), result in zip(calls, results, strict=True):
        if isinstance(result, ActivityError):
            refusals.append(Refusal(machine, why(result)))
        elif isinstance(result, BaseException):
            raise result
    return refusals


def why(error: ActivityError) -> str:
    """The reason inside an activity error, whose own text is always the same sentence."""
    return str(error.cause) if error.cause is not None else str(error)


def pulls_text(pulls: Mapping[str, Sequence[Pull]]) -> str:
    """Who lacked whose shards, and where they came from: "m4 lacked ranks 2-3 (from m0)"."""
    texts: list[str] = []
    for machine, items in pulls.items():
        of_source: dict[str, list[int]] = {}
        for item in items:
            of_source.setdefault(item.machine, []).append(item.rank)
        sources = ", ".join(f"{ranks_text(of)} (from {name})" for name, of in of_source.items())
        texts.append(f"{machine} lacked ranks {sources}")
    more = len(texts) - MAX_MACHINES_TOLD
    return "; ".join(texts[:MAX_MACHINES_TOLD]) + (f"; and {more} more" if more > 0 else "")


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as ranges: "0-3, 6"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
