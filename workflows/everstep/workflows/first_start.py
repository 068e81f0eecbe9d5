"""The first start of a job: who gets which slot, and from where training begins.

Runs inside the job's workflow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core.model import Alert, Assignment, MachineInfo
from everstep.core.orders import FROM_THE_BEGINNING
from everstep.core.vocabulary import Observer, Symptom
from everstep.workflows import asking, ordering, restart, storage, updating
from everstep.workflows.messages import JobInput, JobState
from everstep.workflows.standbys import Standbys

GATHERING_S = 60.0
"""How long the first start waits for standbys once there are machines for every slot."""


async def gather(job: JobInput, state: JobState, standbys: Standbys, asks_cluster: bool) -> None:
    """Wait for a machine for every slot, and a while for the standbys; give the slots out.

    Args:
        job: The job.
        state: Its state, whose pool fills meanwhile; the assignment is put there.
        standbys: Tests those that get no slot.
        asks_cluster: Whether the cluster is asked where machines stand.
    """
    spec = job.spec
    await workflow.wait_condition(lambda: len(state.pool) >= spec.machines)
    wanted = spec.machines + spec.standby_count()
    try:
        await workflow.wait_condition(
            lambda: len(state.pool) >= wanted,
            timeout=timedelta(seconds=GATHERING_S),
            timeout_summary="wait for the standbys",
        )
    except TimeoutError:
        workflow.logger.warning("starting with %d of %d", len(state.pool), wanted)
    places = await asking.places(spec) if asks_cluster else {}
    late = wanted - len(state.pool)
    await _test_spares(spec.machines, state, standbys, places)
    by_name = _by_place(state.pool, places)
    state.assignment = Assignment(
        attempt=1, slots=tuple(by_name[: spec.machines]), code_version=job.code_version
    )
    state.pool = by_name[spec.machines :]
    standbys.expect(late)


async def begin(
    job: JobInput, assignment: Assignment, run: str, note: Callable[[str], None]
) -> list[Alert]:
    """Start attempt 1; what keeps it from starting is the first incident's alerts.

    Args:
        job: The job.
        assignment: Who runs what.
        run: The job's run.
        note: Is told where it begins.
    """
    if job.spec.code.prepare:
        _, problems = await updating.prepare(job, job.code_directory, assignment.slots)
        if problems:
            return [own_alert(Symptom.CODE_ERROR, assignment.attempt, None, "; ".join(problems))]
    try:
        backup = job.spec.backup_plan()
        source = await _source(job, assignment, run, note)
        await restart.start(job, assignment, backup, source.step, run, source.stored)
    except restart.MachinesRefusedError as error:
        return [
            own_alert(Symptom.CONTAINER_ERROR, assignment.attempt, r.machine, r.reason)
            for r in error.refusals
        ]
    except ActivityError as error:
        why = ordering.why(error)
        return [own_alert(Symptom.CONTAINER_ERROR, assignment.attempt, None, why)]
    return []


def own_alert(symptom: Symptom, attempt: int, machine: str | None, detail: str) -> Alert:
    """What the job's workflow has seen itself, just now."""
    now_s = workflow.now().timestamp()
    return Alert(Observer.CONTROLLER, symptom, now_s, detail, attempt, machine)


async def _test_spares(
    machines: int, state: JobState, standbys: Standbys, places: dict[str, str]
) -> None:
    """Test who will have no slot; the first start waits a while for them, no longer."""
    spares = standbys.take_for_tests(_by_place(state.pool, places)[machines:])
    if not spares:
        return
    with contextlib.suppress(TimeoutError):
        await workflow.wait_condition(
            lambda: not any(info in state.arriving for info in spares),
            timeout=timedelta(seconds=GATHERING_S),
            timeout_summary="wait for the standbys' tests",
        )
    await workflow.wait_condition(lambda: len(state.pool) >= machines)


async def _source(
    job: JobInput, assignment: Assignment, run: str, note: Callable[[str], None]
) -> storage.Source:
    """Where a new run begins: where an earlier one had come to, if storage has that."""
    found = await storage.find(job, assignment, run, note)
    source = await storage.bring_back(job, assignment, found, note)
    if source.step != FROM_THE_BEGINNING:
        note(f"this run goes on from step {source.step} of an earlier one")
    return source


def _by_place(pool: list[MachineInfo], places: dict[str, str]) -> list[MachineInfo]:
    """Machines by where they stand, then by name."""
    return sorted(pool, key=lambda info: (places.get(info.machine, ""), _natural(info.machine)))


def _natural(name: str) -> tuple[str, int, str]:
    """Sort key that puts m10 after m9."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits) if digits else -1, name
