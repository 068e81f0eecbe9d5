"""A part of a simulated run: some weeks of the job on a time-skipping server of their own.

Such a server keeps a list of when it let time pass, and looks through all of it whenever a timer is
due: what an incident costs grows with how many there were. So a job leaves its server after some,
as it leaves a run whose history is long: what it would have continued as new with, it is started
with on a fresh server, when the clock there shows the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError
from temporalio.worker import Worker

from everstep.core import names
from everstep.core.errors import TransientError
from everstep.core.model import Alert
from everstep.spec.job import JobSpec
from everstep.workers.simulation.ahead import QUEUE, Ahead
from everstep.workers.simulation.cluster import Signals, SimulatedCluster
from everstep.workers.simulation.controllers import Controllers
from everstep.workers.simulation.fate import Fate
from everstep.workers.simulation.redirect import NEVER, SUFFIX
from everstep.workers.simulation.server import (
    Clock,
    let_time_pass_after,
    let_time_pass_unless_runs,
)
from everstep.workflows import options, story
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import Approval, JobInput, JobState

INCIDENTS_PER_PART = 90
"""Each costs the server more than the last; a fresh one and its controller are started beside."""

LOOKS_S = 0.5
"""Real time between two looks whether a run still goes on."""

STALLED_S = 300.0
"""Real time in which nothing is asked of the cluster, after which nothing will be any more."""

AT_ONCE = 4096
"""Answers that are waited for: of any number of machines that are tested, nearly all sleep."""

BEGINS_WITHIN = timedelta(seconds=60)
CONTINUES_WITHIN_S = 60.0
LOOKS_AGAIN_S = 0.02

SAYS_NOTHING = "report_alerts"
NO_ALERTS: list[Alert] = []
"""Telling a job of none lengthens its history, and does nothing else."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SoFar:
    """How far a run has come.

    Attributes:
        ratio: How much of its days is over, 0 to 1.
        incidents: How many have been opened.
        kills: How many controllers have been killed.
    """

    ratio: float
    incidents: int
    kills: int


@dataclass(frozen=True, slots=True)
class Given:
    """What a run through the workflows is given beside its setting.

    Attributes:
        spec: The job.
        machines_per_batch: How many machines one workflow orders by itself; None: so many that
            an order to all machines is one activity.
        incidents_per_part: After so many closed ones the job goes on with a fresh server.
        kills: How often its controller is killed.
        progress: Is told how far it has come.
    """

    spec: JobSpec
    machines_per_batch: int | None = None
    incidents_per_part: int = INCIDENTS_PER_PART
    kills: int = 0
    progress: Callable[[SoFar], None] | None = None


@dataclass(frozen=True, slots=True)
class Carried:
    """What a job's workflow is started with, on the first server or on the next one."""

    job: JobInput
    state: JobState


async def run_part(
    cluster: SimulatedCluster, fate: Fate, given: Given, carried: Carried, ahead: Ahead
) -> Carried | None:
    """Let the job go on with a server of its own; what to go on with, or None: its days are over.

    Args:
        cluster: Which the job is on.
        fate: What happens by itself.
        given: The run's.
        carried: What the job is started with.
        ahead: Opens this part's place, and is told when to prepare the next one's.

    Raises:
        InputError: The time-skipping server is not installed.
        TransientError: It does not answer, a controller has ended that nobody killed, or nothing
            happens any more.
    """
    async with (
        ahead.place() as place,
        Worker(
            place.client,
            task_queue=QUEUE + SUFFIX,
            activities=cluster.activities(),
            max_concurrent_activities=AT_ONCE,
        ),
    ):
        part = _Part(place.client, given, carried, ahead)
        await cluster.move(part.signals(place.controllers), given.incidents_per_part)
        await _until_over(fate, Clock(place.client), place.controllers)
        if part.left is None:
            await part.tell_open(cluster)
        await part.end()
    return part.left


class _Part:
    """How the cluster reaches the workflows on one server, and how the job comes and goes."""

    def __init__(self, client: Client, given: Given, carried: Carried, ahead: Ahead) -> None:
        name = given.spec.name
        self._client, self._name, self._carried = client, name, carried
        self._ahead, self._half = ahead, carried.state.incidents + given.incidents_per_part // 2
        self._job = client.get_workflow_handle(names.job_workflow_id(name))
        in_production = options.workflow_task_timeout(given.spec.machines)
        self.task_timeout = in_production if given.kills else NEVER
        self._ending = set[asyncio.Task[None]]()
        self.left: Carried | None = None

    def signals(self, controllers: Controllers) -> Signals:
        """All that the cluster may do here."""
        job = self._job
        return Signals(
            begin=self._begin,
            alerts=lambda alerts: job.signal(RunJob.report_alerts, alerts),
            update=lambda request: job.signal(RunJob.push_update, request),
            joined=lambda machine: job.signal(RunJob.machine_joined, machine),
            approve=self._approve,
            closed=self._closed,
            outlived=lambda workflow: let_time_pass_unless_runs(self._client, workflow),
            leave=self._leave,
            kill=controllers.kill,
        )

    async def tell_open(self, cluster: SimulatedCluster) -> None:
        """How far the incident has come that is open when the job's days are over.

        It keeps its record when it is held, when the job trains, and at its end.

        Raises:
            TransientError: Nobody can tell.
        """
        try:
            status = await self._job.query(RunJob.status, rpc_timeout=BEGINS_WITHIN)
            if (number := status.active_incident) is not None:
                handle = self._client.get_workflow_handle(self._incident(number))
                record = await handle.query(ResolveIncident.record, rpc_timeout=BEGINS_WITHIN)
                cluster.records[number] = record
        except RPCError as error:
            raise TransientError(f"what is open at the end cannot be told: {error}") from error

    async def end(self) -> None:
        """Nothing of it goes on."""
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        with contextlib.suppress(RPCError):
            await self._job.terminate("its days are over, here")

    async def _begin(self) -> None:
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await self._client.start_workflow(
                RunJob.run,
                args=[self._carried.job, self._carried.state],
                id=self._job.id,
                task_queue=QUEUE,
                task_timeout=self.task_timeout,
                search_attributes=story.job_attributes(self._name),
            )
        # Before a controller has it, nothing would keep time from passing.
        try:
            await self._job.query(RunJob.status, rpc_timeout=BEGINS_WITHIN)
        except RPCError as error:
            why = f"the job's workflow does not begin within {BEGINS_WITHIN}: {error}"
            raise TransientError(why) from error

    async def _leave(self) -> bool:
        began = self._carried.state.incidents
        self.left = await carried_by(self._client, self._job.id, self._carried.job.max_events)
        if self.left is not None:
            incidents = self.left.state.incidents
            logger.info("goes on with a fresh server: incidents %d to %d", began + 1, incidents)
        return self.left is not None

    async def _approve(self, incident: int, word: Approval) -> None:
        handle = self._client.get_workflow_handle(self._incident(incident))
        await handle.signal(ResolveIncident.approve, word)

    def _closed(self, incident: int) -> None:
        if incident >= self._half:
            self._ahead.prepare()
        done = let_time_pass_after(self._client, self._job.id, self._incident(incident))
        task = asyncio.create_task(done)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _incident(self, number: int) -> str:
        return names.incident_workflow_id(self._name, number)


async def carried_by(client: Client, job: str, max_events: int) -> Carried | None:
    """Let a job continue as new, and see what with; None if it has other things to do.

    It does so by its own rule, when its history is long: signals that say nothing make it so.

    Args:
        client: Of its server.
        job: Id of its workflow.
        max_events: Length of the history from which on it continues as new.

    Raises:
        TransientError: It does not.
    """
    handle = client.get_workflow_handle(job)
    before = await handle.describe()
    missing = max(1, max_events + 1 - before.history_length)
    await asyncio.gather(*(handle.signal(SAYS_NOTHING, NO_ALERTS) for _ in range(missing)))
    deadline_s = asyncio.get_running_loop().time() + CONTINUES_WITHIN_S
    while (run := (await handle.describe()).run_id) == before.run_id:
        if asyncio.get_running_loop().time() > deadline_s:
            raise TransientError(f"{job} does not continue as new")
        await asyncio.sleep(LOOKS_AGAIN_S)
    history = await client.get_workflow_handle(job, run_id=run).fetch_history()
    signals = {
        event.workflow_execution_signaled_event_attributes.signal_name
        for event in history.events
        if event.HasField("workflow_execution_signaled_event_attributes")
    }
    given = history.events[0].workflow_execution_started_event_attributes.input.payloads
    its_input, state = await client.data_converter.decode(given, [JobInput, JobState])
    calm = state.active is None and not state.pending and signals <= {SAYS_NOTHING}
    return Carried(its_input, state) if calm else None


async def _until_over(fate: Fate, clock: Clock, controllers: Controllers) -> None:
    """Let everything happen until the end of the job's days, or of its time on this server.

    Raises:
        TransientError: It will not come.
    """
    over = asyncio.create_task(fate.follow(clock))
    try:
        while not over.done():
            await asyncio.wait([over], timeout=LOOKS_S)
            if not over.done():
                _unless_stuck(fate, controllers)
        await over
    except RPCError as error:
        raise TransientError(f"the simulation came to no end: {error}") from error
    finally:
        over.cancel()
        await asyncio.gather(over, return_exceptions=True)


def _unless_stuck(fate: Fate, controllers: Controllers) -> None:
    if (how := controllers.ended()) is not None:
        why = f"a controller has ended by itself ({how}), and the simulation with it"
        raise TransientError(f"{why}: run it again")
    if fate.idle_s() >= STALLED_S:
        raise TransientError(f"nobody has worked for {STALLED_S:g} s, and time stands still")
