"""What a job asks of its cluster, so that nothing there can hold a recovery up.

A machine that is evicted has been stopped, or does not answer anyway; that its pod goes, that
others see who holds which slot, is waited for a moment at most. What comes later is told when it
comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core.model import Assignment, MachineInfo
from everstep.spec.job import JobSpec
from everstep.workflows import options
from everstep.workflows.effects import (
    ClaimOrder,
    ClaimReport,
    EvictOrder,
    MachinesQuery,
    ReleaseOrder,
    SlotsOrder,
)
from everstep.workflows.ordering import why
from everstep.workflows.ports import ClusterPort
from everstep.workflows.situation import Situation


async def evict(now: Situation, machines: Sequence[MachineInfo], reason: str) -> None:
    """Have machines evicted, and wait for that a moment at most; the rest goes on by itself."""
    tasks = [asyncio.create_task(_evict(now, info, reason)) for info in machines]
    now.chores += tasks
    try:
        await workflow.wait_condition(
            lambda: all(task.done() for task in tasks),
            timeout=options.EVICT_PATIENCE,
            timeout_summary="wait a moment for evictions",
        )
    except TimeoutError:
        late = [i.machine for i, task in zip(machines, tasks, strict=True) if not task.done()]
        now.story.tell(f"goes on while the cluster evicts {', '.join(late)}")


async def _evict(now: Situation, info: MachineInfo, reason: str) -> None:
    order = EvictOrder(info, now.record.incident, reason, now.job.spec.name)
    try:
        answer = await workflow.execute_activity_method(
            ClusterPort.evict, order, **options.EVICT.config(f"evict {info.machine}: {reason}")
        )
    except ActivityError as error:
        text = f"the cluster could not evict {info.machine}: {why(error)}"
        now.story.tell(text)
        now.pages.send(text)
        return
    if answer is not None and answer.waiting:
        now.story.tell(f"the eviction of {info.machine} waits for its budget: {answer.waiting}")


def quarantine(now: Situation, machines: Sequence[MachineInfo], reason: str) -> None:
    """Let nothing new begin on machines while they are tested; nothing waits for that."""
    for info in machines:
        task = asyncio.create_task(_quarantine(now, info, reason))
        now.quarantining[info.machine] = task
        now.chores.append(task)


async def _quarantine(now: Situation, info: MachineInfo, reason: str) -> None:
    order = EvictOrder(info, now.record.incident, reason, now.job.spec.name)
    try:
        await workflow.execute_activity_method(
            ClusterPort.quarantine,
            order,
            **options.CLUSTER_MARK.config(f"quarantine {info.machine} while it is tested"),
        )
    except ActivityError as error:
        now.story.tell(f"{info.machine} is tested without quarantine: {why(error)}")


async def release(now: Situation, machine: str) -> None:
    """Undo the quarantine of a machine that passed its tests, after it was done."""
    if (quarantining := now.quarantining.pop(machine, None)) is not None:
        await asyncio.gather(quarantining, return_exceptions=True)
    try:
        await release_machine(now.job.spec.name, machine)
    except ActivityError as error:
        now.story.tell(f"{machine} is still in quarantine: {why(error)}")


async def release_machine(job: str, machine: str) -> None:
    """Undo a job's quarantine of a machine.

    Raises:
        ActivityError: The cluster did not take it.
    """
    await workflow.execute_activity_method(
        ClusterPort.release,
        ReleaseOrder(job, machine),
        **options.CLUSTER_MARK.config(f"end the quarantine of {machine}"),
    )


async def claim(
    now: Situation, claims: Sequence[tuple[int, MachineInfo]]
) -> tuple[tuple[str, str], ...]:
    """Machines that must not take their slots, each with why; none where nobody can tell in time.

    A standby's agent is heard and has its code ready. That the cluster cannot be asked says nothing
    of it, and thousands of GPUs wait.
    """
    names = ", ".join(info.machine for _, info in claims)
    try:
        report: ClaimReport = await workflow.execute_activity_method(
            ClusterPort.claim,
            ClaimOrder(now.job.spec.name, now.record.incident, tuple(claims)),
            **options.CLAIM.config(f"give slots to {names}"[: options.MAX_SUMMARY_CHARS]),
        )
    except ActivityError as error:
        now.story.tell(f"the cluster did not say whether it minds {names}: {why(error)}")
        return ()
    return report.refused


def show_new_slots(now: Situation) -> None:
    """Let the cluster show the slots of a new attempt, and no longer those of an earlier one."""
    if now.showing is not None:
        now.showing.cancel()
    now.showing = asyncio.create_task(show_slots(now.job.spec, now.assignment))
    now.chores.append(now.showing)


async def show_slots(spec: JobSpec, assignment: Assignment) -> None:
    """Let the cluster show who holds which slot; a cluster that cannot is left alone."""
    try:
        await workflow.execute_activity_method(
            ClusterPort.give_slots,
            SlotsOrder(spec.name, tuple(assignment.machine_names())),
            **options.CLUSTER_MARK.config(f"show the slots of attempt {assignment.attempt}"),
        )
    except ActivityError as error:
        workflow.logger.warning("slots are not shown: %s", why(error))


async def places(spec: JobSpec) -> dict[str, str]:
    """Where machines stand, by name; empty where nobody asks for it, or the cluster cannot tell."""
    if not spec.topology_label:
        return {}
    try:
        seen = await workflow.execute_activity_method(
            ClusterPort.list_machines,
            MachinesQuery(spec.name, spec.topology_label),
            **options.CLUSTER_MARK.config("see where machines stand"),
        )
    except ActivityError as error:
        workflow.logger.warning("slots are not ordered by place: %s", why(error))
        return {}
    return {machine.machine: machine.place for machine in seen}


async def settle(now: Situation) -> None:
    """Wait for what was asked of the cluster, unless the job ends or newer evidence comes."""
    await workflow.wait_condition(
        lambda: all(task.done() for task in now.chores) or now.overtaken() or now.job_finished
    )
    for task in now.chores:
        task.cancel()
    await asyncio.gather(*now.chores, return_exceptions=True)
