"""A simulated run through the real workflows: server, controller, cluster, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker

from everstep.core import names
from everstep.core.errors import TransientError
from everstep.core.record import IncidentRecord
from everstep.core.simulation.engine import EARLIER, FIRST_VERSION, Met, Run
from everstep.core.simulation.faults import DAY_S, Fault
from everstep.core.simulation.setting import Setting
from everstep.core.simulation.world import Strike, World
from everstep.spec.job import JobSpec
from everstep.workers.simulation.cluster import Signals, SimulatedCluster
from everstep.workers.simulation.controllers import controlled
from everstep.workers.simulation.machines import CODE, info_of
from everstep.workers.simulation.redirect import NEVER, SUFFIX
from everstep.workers.simulation.server import let_time_pass, let_time_pass_after, skipping
from everstep.workflows import options, story
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import Approval, JobInput, JobResult, JobState
from everstep.workflows.simulated import SimulateFate

MACHINES_PER_BATCH = 600
"""Six times that of production: a child workflow costs the same whatever its batch, and no history
comes near a limit when the machines of a batch leave nothing in it."""

BEGINS_WITHIN_S = 120.0

STALLED_S = 300.0
"""Real time in which nothing is asked of the cluster, after which nothing will be any more."""

MOST_LATE_S = 60.0
"""By how much anything may come later than it was due, on the server's clock: a killed controller's
task is given to the next one after 10 s at most, and the machine may be busy."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a run through the workflows is given beside its setting.

    Attributes:
        spec: The job.
        machines_per_batch: How many machines one workflow orders by itself.
        kills: How often its controller is killed.
        progress: Is told how much of it is done, 0 to 1.
    """

    spec: JobSpec
    machines_per_batch: int = MACHINES_PER_BATCH
    kills: int = 0
    progress: Callable[[float], None] | None = None


async def simulate(setting: Setting, faults: Sequence[Fault], given: Given) -> Run:
    """Run a job to the end of its days, by the workflows that run in production.

    Raises:
        InputError: The time-skipping server is not installed.
        TransientError: It does not answer, or does not keep its time.
    """
    queue = f"{names.CONTROLLER_QUEUE}.simulated"
    world = World(setting, faults)
    async with skipping() as client, controlled(client, queue, given.kills > 0) as controllers:
        cluster = _cluster(client, world, given)
        cluster.disturb(controllers.kill, given.kills, len(faults))
        async with Worker(
            client,
            task_queue=queue + SUFFIX,
            activities=cluster.activities(),
            max_concurrent_activities=8,
        ):
            fate = await client.start_workflow(
                SimulateFate.run,
                id=_fate(given.spec),
                task_queue=queue,
                task_timeout=_task_timeout(given),
            )
            job = await _start_job(client, queue, world, given)
            # Before a controller is there, nothing would keep time from passing.
            await asyncio.wait_for(cluster.begun.wait(), BEGINS_WITHIN_S)
            await let_time_pass(client)
            await _until_over(fate, cluster)
            with contextlib.suppress(RPCError):
                await job.terminate("its days are over")
    if cluster.latest_s > MOST_LATE_S:
        late = f"something came {cluster.latest_s:.0f} s later than it was due"
        raise TransientError(f"time passed while workflows worked: {late}")
    return _run(cluster, setting)


async def _until_over(fate: WorkflowHandle[SimulateFate, None], cluster: SimulatedCluster) -> None:
    """Wait for the end of the job's days.

    Raises:
        TransientError: It will not come.
    """
    over = asyncio.create_task(fate.result())
    while not over.done():
        await asyncio.wait([over], timeout=max(1.0, STALLED_S - cluster.idle_s()))
        if not over.done() and cluster.idle_s() >= STALLED_S:
            over.cancel()
            raise TransientError(f"nobody has worked for {STALLED_S:g} s, and time stands still")
    await over


def _cluster(client: Client, world: World, given: Given) -> SimulatedCluster:
    job = client.get_workflow_handle(names.job_workflow_id(given.spec.name))
    fate = client.get_workflow_handle(_fate(given.spec))
    ending = set[asyncio.Task[None]]()

    async def approve(incident: int, word: Approval) -> None:
        identifier = names.incident_workflow_id(given.spec.name, incident)
        await client.get_workflow_handle(identifier).signal(ResolveIncident.approve, word)

    async def changed() -> None:
        await fate.signal(SimulateFate.changed)

    def closed(incident: int) -> None:
        identifier = names.incident_workflow_id(given.spec.name, incident)
        task = asyncio.create_task(let_time_pass_after(client, job.id, identifier))
        ending.add(task)
        task.add_done_callback(ending.discard)

    signals = Signals(
        alerts=lambda alerts: job.signal(RunJob.report_alerts, alerts),
        update=lambda request: job.signal(RunJob.push_update, request),
        joined=lambda machine: job.signal(RunJob.machine_joined, machine),
        approve=approve,
        changed=changed,
        closed=closed,
    )
    return SimulatedCluster(world, signals, given.progress or (lambda _: None))


async def _start_job(
    client: Client, queue: str, world: World, given: Given
) -> WorkflowHandle[RunJob, JobResult]:
    # A model's machines join after their tests, and its standbys do not fail in their sleep.
    calm = {"self_check": False, "check_every_s": 0.0}
    standby = given.spec.standby.model_copy(update=calm)
    spec = given.spec.model_copy(update={"standby": standby})
    codes = tuple(replace(code, directory=f"{CODE}{code.version}") for code in EARLIER)
    job = JobInput(
        spec,
        FIRST_VERSION,
        f"{CODE}{FIRST_VERSION}",
        earlier_code=codes,
        machines_per_batch=given.machines_per_batch,
    )
    pool = [info_of(machine) for machine in world.first_machines()]
    return await client.start_workflow(
        RunJob.run,
        args=[job, JobState(pool=pool)],
        id=names.job_workflow_id(spec.name),
        task_queue=queue,
        task_timeout=_task_timeout(given),
        search_attributes=story.job_attributes(spec.name),
    )


def _task_timeout(given: Given) -> timedelta:
    return options.workflow_task_timeout(given.spec.machines) if given.kills else NEVER


def _fate(spec: JobSpec) -> str:
    return f"simulation/{spec.name}"


def _run(cluster: SimulatedCluster, setting: Setting) -> Run:
    world, end_s = cluster.world, setting.days * DAY_S
    world.stop()
    records = [since(cluster.records[n], cluster.from_s) for n in sorted(cluster.records)]
    return Run(
        setting=setting,
        met=tuple(Met(record, _strike_of(record, world.struck)) for record in records),
        steps=tuple(seen for seen in world.steps if seen.at_s <= end_s),
        guilty=frozenset(world.guilty),
        missed=len(cluster.missed),
        to_s=end_s,
    )


def since(record: IncidentRecord, from_s: float) -> IncidentRecord:
    """The record with its times in seconds since the job's begin.

    Args:
        record: As the workflow made it.
        from_s: The job's begin, Unix seconds.
    """

    def then(at_s: float | None) -> float | None:
        return None if at_s is None else at_s - from_s

    return replace(
        record,
        opened_at_s=record.opened_at_s - from_s,
        fault_at_s=record.fault_at_s - from_s,
        first_step_at_s=then(record.first_step_at_s),
        closed_at_s=then(record.closed_at_s),
        climbs=tuple(replace(one, at_s=one.at_s - from_s) for one in record.climbs),
        marks=tuple(replace(one, at_s=one.at_s - from_s) for one in record.marks),
        timeline=tuple(replace(one, at_s=one.at_s - from_s) for one in record.timeline),
    )


def _strike_of(record: IncidentRecord, struck: Sequence[Strike]) -> Strike:
    """What opened an incident: the strike that was noticed when it says that it was."""
    return min(struck, key=lambda strike: abs(strike.alert_at_s - record.fault_at_s))
