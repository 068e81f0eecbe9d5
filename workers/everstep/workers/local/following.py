"""A local run while its job lives: steps and incidents are told, faults fired, machines added."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import asdict

from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError

from everstep.core import updates
from everstep.core.errors import EverstepError, PermanentError
from everstep.workers import handles
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.injecting import Injector
from everstep.workers.local.narrator import Narrator
from everstep.workers.local.processes import Processes, last_line
from everstep.workers.settings import WorkerSettings
from everstep.workers.telemetry import watch
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import JobResult, JobStatus

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5


class Follower:
    """Sees one job through.

    Args:
        client: Of the server that has the job.
        job: Its name.
        given: Settings of the run's processes: where the analyzer listens.
        processes: Those of the run.
        injector: Has the faults that steps make due.
        folder: The run's.
        narrator: Who tells a person.
    """

    def __init__(
        self,
        client: Client,
        job: str,
        given: WorkerSettings,
        processes: Processes,
        injector: Injector,
        folder: RunFolder,
        narrator: Narrator,
    ) -> None:
        self._client = client
        self._job = job
        self._handle = handles.of_job(client, job)
        self._given = given
        self._processes = processes
        self._injector = injector
        self._folder = folder
        self._narrator = narrator

    async def to_the_end(self) -> JobResult:
        """Follow it until its job is over.

        Raises:
            PermanentError: The job failed, or can never begin.
        """
        result = asyncio.create_task(self._result())
        background = [
            asyncio.create_task(self._follow_steps()),
            asyncio.create_task(self._follow_story()),
            asyncio.create_task(self._take_requests()),
        ]
        try:
            # The others never end; one that fails takes the run with it.
            await asyncio.wait([result, *background], return_when=asyncio.FIRST_COMPLETED)
            for follower in background:
                if follower.done():
                    follower.result()
            finished = await result
            await self._keep_last_status()
            self._injector.tell_leftovers()
            return finished
        finally:
            for task in (result, *background):
                task.cancel()
            await asyncio.gather(result, *background, return_exceptions=True)

    async def _keep_last_status(self) -> None:
        """Keep who held which slot: once the server is gone, nobody can be asked."""
        with contextlib.suppress(RPCError):
            status = await self._handle.query(RunJob.status)
            slots = () if status.assignment is None else status.assignment.machine_names()
            self._folder.write_state(
                slots=list(slots),
                standbys=[info.machine for info in status.pool],
                standby_plan=None if status.standbys is None else asdict(status.standbys),
                evicted=list(status.evicted),
                job_started_at_s=status.started_at_s,
                notes=[[note.at_s, note.text] for note in status.notes],
                updates=updates.told(status.updates, status.codes),
                noted=[
                    {
                        "symptom": alert.symptom,
                        "at_s": alert.at_s,
                        "machine": alert.machine,
                        "detail": alert.detail,
                    }
                    for alert in status.noted
                ],
            )

    async def _result(self) -> JobResult:
        while True:
            try:
                return await self._handle.result()
            except WorkflowFailureError as error:
                raise PermanentError(f"the job failed: {error.cause}") from error
            except RPCError as error:
                logger.info("the server does not answer: %s", error)
                await asyncio.sleep(LOOK_EVERY_S)

    async def _follow_steps(self) -> None:
        """Tell of steps and fire the faults that they make due; the analyzer may be away."""
        given = self._given
        while True:
            try:
                following = watch(
                    given.telemetry_host, given.telemetry_port, given.secret(), self._job
                )
                async with contextlib.aclosing(following):
                    async for snapshot in following:
                        self._narrator.progress(snapshot)
                        if snapshot.slowest is not None:
                            self._injector.reached(snapshot.slowest)
            except (OSError, EverstepError, asyncio.IncompleteReadError) as error:
                logger.info("no analyzer to follow: %s", error)
            await asyncio.sleep(0.05)

    async def _follow_story(self) -> None:
        """Tell of incidents as they go, and of agents that end before they could join."""
        told: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                status = await self._handle.query(RunJob.status)
                noted = [note.text for note in status.notes] + [a.detail for a in status.noted]
                for text in noted:
                    if text not in told:
                        told.add(text)
                        self._narrator.say(text)
                if status.phase == "training":
                    self._narrator.started()
                    self._injector.reached(0)
                self._fail_without_agents(status)
                if status.incidents:
                    incident = handles.of_incident(self._client, self._job, status.incidents)
                    self._narrator.incident(await incident.query(ResolveIncident.record))
            except RPCError as error:
                logger.info("cannot be asked now: %s", error)

    def _fail_without_agents(self, status: JobStatus) -> None:
        """An agent that ends before the job could start would be waited for in vain."""
        if status.assignment is not None:
            return
        for machine, child in self._processes.agents.items():
            if child.pid == 0:
                raise PermanentError(
                    f"the agent of {machine} ended before it was ready: {last_line(child.log)}"
                )

    async def _take_requests(self) -> None:
        """Add a machine for each request; one that comes twice was taken the first time."""
        taken: set[str] = set()
        while True:
            for request in sorted(self._folder.requests.iterdir()):
                request.unlink()
                if request.name in taken:
                    continue
                taken.add(request.name)
                machine = await self._processes.add_machine()
                self._narrator.say(f"machine {machine} added on request; it is getting ready")
            await asyncio.sleep(LOOK_EVERY_S)
