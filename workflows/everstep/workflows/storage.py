"""Restarting from the storage tier: which checkpoint, and the orders that bring it back.

Shared by the job workflow (a new run goes on where an earlier one had come to) and the incident
workflow (memory has no step that all ranks can get). Runs inside a workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core import names
from everstep.core.model import Assignment, MachineInfo
from everstep.core.orders import (
    FROM_THE_BEGINNING,
    RestoreOrder,
    StorageReport,
    StoredCheckpoint,
    StoredShare,
)
from everstep.core.stored import candidates
from everstep.workflows import options, ordering, restart
from everstep.workflows.batches import Refusal
from everstep.workflows.messages import JobInput
from everstep.workflows.ports import MachinePort

MOST_TRIED = 5
"""Checkpoints that are tried one after the other: reading each takes minutes."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where ranks start.

    Attributes:
        step: The step.
        stored: The checkpoint that ranks read it from themselves, as its layout is another; else
            empty.
    """

    step: int
    stored: str = ""


async def find(
    job: JobInput, assignment: Assignment, run: str, tell: Callable[[str], None]
) -> list[StoredCheckpoint]:
    """The checkpoints that may be restored from, best first; none without a storage tier.

    Args:
        job: The job.
        assignment: Who can be asked.
        run: The job's run.
        tell: Takes down what somebody should know.
    """
    if job.spec.checkpoint.storage is None:
        return []
    for info in assignment.slots:
        report = await _look(job, info)
        if report.reason:
            tell(f"{info.machine} cannot read the storage: {report.reason}")
            continue
        for name, reason in report.unusable:
            workflow.logger.info("%s in storage is no checkpoint: %s", name, reason)
        found = candidates(report.checkpoints, run if job.from_scratch else None)
        if not found:
            tell("storage has no complete checkpoint")
        return found
    return []


async def bring_back(
    job: JobInput,
    assignment: Assignment,
    found: Sequence[StoredCheckpoint],
    tell: Callable[[str], None],
) -> Source:
    """Put the best checkpoint that is whole where the ranks find it.

    Args:
        job: The job.
        assignment: The attempt that will start from it.
        found: What `find` found.
        tell: Takes down what somebody should know.

    Returns:
        Where to start: the beginning, if none is whole.

    Raises:
        MachinesRefusedError: A machine could not be asked, which says nothing of the checkpoint.
    """
    for checkpoint in found[:MOST_TRIED]:
        same_layout = checkpoint.layout == job.spec.parallelism.text()
        problems = await _load(job, assignment, checkpoint, same_layout)
        if not problems:
            how = "" if same_layout else f", to be turned from layout {checkpoint.layout}"
            tell(f"step {checkpoint.step} comes from storage ({checkpoint.name}{how})")
            return Source(checkpoint.step, "" if same_layout else checkpoint.name)
        tell(f"step {checkpoint.step} in storage is of no use: {problems[0]}")
    return Source(FROM_THE_BEGINNING)


async def _look(job: JobInput, info: MachineInfo) -> StorageReport:
    try:
        return await workflow.execute_activity_method(
            MachinePort.look_at_storage,
            **options.LOOK_AT_STORAGE.config(
                f"see from {info.machine} what is in storage",
                names.machine_queue(job.spec.name, info.machine),
            ),
        )
    except ActivityError as error:
        return StorageReport(info.machine, (), (), ordering.why(error))


async def _load(
    job: JobInput, assignment: Assignment, checkpoint: StoredCheckpoint, same_layout: bool
) -> list[str]:
    """Let every machine take its share; what is wrong with the checkpoint."""
    layout = job.spec.layout()

    def share(slot: int) -> RestoreOrder:
        ranks = tuple(layout.ranks_of(slot)) if same_layout else ()
        part = StoredShare(checkpoint.name, ranks, slot, len(assignment.slots))
        return RestoreOrder(assignment.attempt, checkpoint.step, (), part)

    answers = await ordering.order(
        job.spec.name,
        job.machines_per_batch,
        ordering.RESTORE,
        [(name, share(slot)) for slot, name in enumerate(assignment.machine_names())],
    )
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    if refusals:
        raise restart.MachinesRefusedError(refusals)
    reports = [answer for answer in answers if not isinstance(answer, Refusal)]
    return [f"{report.machine}: {why}" for report in reports for _, why in report.failed]
