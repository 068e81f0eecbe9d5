"""Restart in place: the orders that take a job from an assignment to running ranks.

Shared by the job workflow (first start) and the incident workflow (every later one). Runs inside a
workflow: deterministic, all effects through ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from temporalio import workflow

from everstep.core import names
from everstep.core.model import Assignment, MachineInfo, StepSeen
from everstep.core.orders import Pull, RankStart, RestoreOrder, StartOrder
from everstep.core.placement import BackupPlan
from everstep.core.restore import RestorePlan
from everstep.core.stacks.words import runs_text
from everstep.workflows import options, ordering
from everstep.workflows.batches import Refusal
from everstep.workflows.effects import AwaitStep
from everstep.workflows.messages import JobInput
from everstep.workflows.ports import AnalysisPort

MAX_MACHINES_TOLD = 8
"""In one line of a story."""


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


async def restore(job: JobInput, assignment: Assignment, plan: RestorePlan) -> None:
    """Let every machine that lacks a shard fetch it from a machine that has it.

    Raises:
        MachinesRefusedError: Some machine could not, or some shard did not arrive whole.
    """
    fetching = {**plan.pulls, **plan.loans}

    def of(machine: str) -> RestoreOrder:
        pulls, loans = plan.pulls.get(machine, ()), plan.loans.get(machine, ())
        return RestoreOrder(assignment.attempt, plan.step, tuple(pulls), loans=tuple(loans))

    orders = [(name, of(name)) for name in assignment.machine_names() if fetching.get(name)]
    answers = await ordering.order(job.spec.name, job.machines_per_batch, ordering.RESTORE, orders)
    refusals: list[Refusal] = []
    for answer in answers:
        if isinstance(answer, Refusal):
            refusals.append(answer)
        else:
            refusals += [Refusal(answer.machine, f"rank {r}: {why}") for r, why in answer.failed]
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
    orders = start_orders(job, assignment, backup, restore_step, run, stored)
    answers = await ordering.order(job.spec.name, job.machines_per_batch, ordering.START, orders)
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    if refusals:
        raise MachinesRefusedError(refusals)


def start_orders(
    job: JobInput,
    assignment: Assignment,
    backup: BackupPlan,
    restore_step: int,
    run: str = "",
    stored: str = "",
) -> list[tuple[str, StartOrder]]:
    """What each machine must start, and whose copies it must keep; as `start`.

    Returns:
        Machines by slot, with their orders.
    """
    layout = job.spec.layout()
    master = assignment.slots[0]
    directory = assignment.code_directory or job.code_directory

    def holder(rank: int) -> MachineInfo | None:
        held_by = backup.holder.get(rank)
        return None if held_by is None else assignment.slots[layout.machine_of(held_by)]

    def order(slot: int) -> StartOrder:
        ranks = layout.ranks_of(slot)
        return StartOrder(
            attempt=assignment.attempt,
            slot=slot,
            ranks=tuple([RankStart(rank, at, holder(rank)) for at, rank in enumerate(ranks)]),
            held_ranks=backup.held_by(layout, slot),
            world_size=layout.world_size,
            num_machines=layout.num_machines,
            master_host=master.host,
            master_port=master.rendezvous_port,
            restore_step=restore_step,
            code_directory=directory,
            run=run,
            stored=stored,
            settings=assignment.settings,
        )

    return [(info.machine, order(slot)) for slot, info in enumerate(assignment.slots)]


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


def pulls_text(pulls: Mapping[str, Sequence[Pull]]) -> str:
    """Who lacked whose shards, and where they came from: "m4 lacked ranks 2-3 (from m0)"."""
    texts: list[str] = []
    for machine, items in pulls.items():
        of_source: dict[str, list[int]] = {}
        for item in items:
            of_source.setdefault(item.machine, []).append(item.rank)
        sources = ", ".join(f"{runs_text(of)} (from {name})" for name, of in of_source.items())
        texts.append(f"{machine} lacked ranks {sources}")
    more = len(texts) - MAX_MACHINES_TOLD
    return "; ".join(texts[:MAX_MACHINES_TOLD]) + (f"; and {more} more" if more > 0 else "")
