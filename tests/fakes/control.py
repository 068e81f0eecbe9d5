"""A control plane over fake machines: real workflows, server and workers, fake effects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker

from everstep.activities.evidence import EvidenceStore
from everstep.activities.stacks import StackJudge
from everstep.activities.trace import TraceActivities
from everstep.activities.webhook import Webhook
from everstep.core import names
from everstep.core.errors import TransientError
from everstep.core.memory import CodeVersion
from everstep.core.model import Alert, RankExit, RanksFinished
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Observer, Symptom
from everstep.spec.job import JobSpec
from everstep.workers import handles, registry, runtime
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workflows import options, story
from everstep.workflows.batches import MACHINES_PER_BATCH
from everstep.workflows.effects import (
    ClaimOrder,
    ClaimReport,
    Evicted,
    EvictOrder,
    MachineRequest,
    MachinesQuery,
    ReleaseOrder,
    SeenMachine,
    SlotsOrder,
)
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import MAX_EVENTS, JobInput, JobResult, JobStatus
from everstep.workflows.ports import ArchivePort, ClusterPort
from tests.fakes.fleet import Effect, FakeMachine, FakeWorld

PATIENCE_S = 60.0

NO_ANSWER = timedelta(seconds=5)
"""A question that reaches a worker just as it ends is never answered."""

MOST_INCIDENTS = 5
"""More than any test opens."""


class FakeCluster(ClusterPort):
    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    @activity.defn(name="cluster.evict")
    async def evict(self, order: EvictOrder) -> Evicted | None:
        if self._world.cluster_away:
            raise RuntimeError("the cluster is away")
        self._world.quarantined.add(order.machine.machine)
        if (order.machine.machine, order.incident) not in self._world.done("evict"):
            self._world.effects.append(Effect("evict", order.machine.machine, order.incident))
        return Evicted(self._world.budget)

    @activity.defn(name="cluster.list_machines")
    async def list_machines(self, query: MachinesQuery) -> tuple[SeenMachine, ...]:
        places = self._world.places if query.topology_label else {}
        return tuple(SeenMachine(m, place=places.get(m, "")) for m in self._world.machines)

    @activity.defn(name="cluster.claim")
    async def claim(self, order: ClaimOrder) -> ClaimReport:
        if self._world.cluster_away:
            raise RuntimeError("the cluster is away")
        names = [info.machine for _, info in order.claims]
        return ClaimReport(tuple((n, why) for n, why in self._world.minds.items() if n in names))

    @activity.defn(name="cluster.give_slots")
    async def give_slots(self, order: SlotsOrder) -> None:
        self._world.shown = order.machines

    @activity.defn(name="cluster.quarantine")
    async def quarantine(self, order: EvictOrder) -> None:
        self._world.quarantined.add(order.machine.machine)
        self._world.ever_quarantined.add(order.machine.machine)

    @activity.defn(name="cluster.release")
    async def release(self, order: ReleaseOrder) -> None:
        self._world.quarantined.discard(order.machine)

    @activity.defn(name="cluster.request_machines")
    async def request_machines(self, request: MachineRequest) -> None:
        if self._world.brings_nothing:
            raise TransientError("no API server answers")
        if request not in self._world.requests:
            self._world.requests.append(request)


class MemoryArchive(ArchivePort):
    def __init__(self) -> None:
        self.records: dict[int, IncidentRecord] = {}

    @activity.defn(name="archive.save_incident")
    async def save_incident(self, record: IncidentRecord) -> None:
        self.records[record.incident] = record


class Replaceable:
    """A worker that may be given up at any moment for another, which knows nothing of its work.

    Args:
        make: Makes one.
    """

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._worker = make()

    async def replace(self) -> None:
        """Give it up without grace: activities are cut off, all workflows are read anew."""
        await self._worker.__aexit__(None, None, None)
        self._worker = self._make()
        await self._worker.__aenter__()

    async def __aenter__(self) -> Replaceable:
        await self._worker.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._worker.__aexit__(None, None, None)


@dataclass
class Control:
    """Handles that a test works with."""

    client: Client
    spec: JobSpec
    world: FakeWorld
    archive: MemoryArchive
    handle: WorkflowHandle[RunJob, JobResult]
    workers: contextlib.AsyncExitStack
    controllers: Replaceable
    look_every_s: float = 0.02
    patience_s: float = PATIENCE_S
    agents: dict[str, Worker] = field(default_factory=dict[str, Worker])

    async def join(self, name: str) -> FakeMachine:
        machine = FakeMachine(self.world, name)
        traces = TraceActivities(name, machine, EvidenceStore(f"memory://{self.spec.name}"))
        worker = registry.agent(self.client, self.spec.name, name, machine, traces)
        await self.workers.enter_async_context(worker)
        self.agents[name] = worker
        await self.handle.signal(RunJob.machine_joined, machine.info)
        return machine

    async def lose(self, name: str, step: int | None = None) -> None:
        """The machine stops answering, and the analyzer says so, and which step was the newest."""
        machine = self.world.machines[name]
        machine.running = ()
        stopping = asyncio.create_task(self.agents[name].shutdown())
        await self.alert(Symptom.AGENT_LOST, name, step)
        await stopping

    async def alert(self, symptom: Symptom, machine: str, step: int | None = None) -> None:
        alert = Alert(
            Observer.ANALYZER, symptom, time.time(), f"{machine}: {symptom}", machine=machine,
            step=step,
        )  # fmt: skip
        await self.handle.signal(RunJob.report_alerts, [alert])

    async def crash(self, machine: str, rank: int, signal: int = 9) -> None:
        """A rank is ended by a signal, and its agent says so."""
        await self.tell_end(self.world.machines[machine].crash(rank, signal))

    async def tell_end(self, ended: RankExit) -> None:
        """An agent says that a rank has ended."""
        alert = Alert(
            Observer.AGENT, Symptom.PROCESS_CRASH, ended.at_s, f"rank {ended.rank} was killed",
            ended.attempt, ended.machine, ended.rank, ended,
        )  # fmt: skip
        await self.handle.signal(RunJob.report_alerts, [alert])

    async def nan(self, attempt: int) -> None:
        """The loss becomes NaN, which points at nobody."""
        alert = Alert(Observer.ANALYZER, Symptom.NAN_VALUE, time.time(), "loss is NaN", attempt)
        await self.handle.signal(RunJob.report_alerts, [alert])

    async def hang(self, attempt: int, step: int) -> None:
        """All ranks fall silent after a step, which points at nobody."""
        alert = Alert(
            Observer.ANALYZER, Symptom.JOB_HANG, time.time(), "the job hangs", attempt, step=step
        )
        await self.handle.signal(RunJob.report_alerts, [alert])

    async def finish(self) -> JobResult:
        """All ranks end well."""
        status = await self.status()
        assert status.assignment is not None
        for name in status.assignment.machine_names():
            finished = RanksFinished(name, status.assignment.attempt, 0.0)
            await self.handle.signal(RunJob.ranks_finished, finished)
        return await asyncio.wait_for(self.handle.result(), self.patience_s)

    async def status(self) -> JobStatus:
        """How the job stands; a controller may be away for a moment."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.patience_s
        while True:
            try:
                return await self.handle.query(RunJob.status, rpc_timeout=NO_ANSWER)
            except RPCError:
                if loop.time() > deadline_s:
                    raise
                await asyncio.sleep(self.look_every_s)

    async def record(self, incident: int = 1) -> IncidentRecord:
        return await self.incident(incident).query(ResolveIncident.record, rpc_timeout=NO_ANSWER)

    def incident(self, incident: int = 1) -> WorkflowHandle[ResolveIncident, object]:
        return handles.of_incident(self.client, self.spec.name, incident)

    async def training(self, attempt: int) -> None:
        """Wait until an attempt has made its first step and no recovery is under way."""
        await asyncio.wait_for(self.world.wait_for_step(attempt, 1), self.patience_s)

    async def until_started(self, attempt: int) -> None:
        """Wait until all machines of an attempt have started their ranks."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.patience_s
        while sum(1 for _, a in self.world.done("start") if a == attempt) < self.spec.machines:
            if loop.time() > deadline_s:
                raise AssertionError(f"attempt {attempt} never started: {self.world.effects}")
            await asyncio.sleep(0.01)

    async def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds in the fake world."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.patience_s
        while not holds():
            assert loop.time() < deadline_s, f"never came true: {what}"
            await asyncio.sleep(0.01)

    async def until_phase(self, phase: str) -> None:
        """Wait until the job says that it is in this phase."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.patience_s
        while (seen := (await self.status()).phase) != phase:
            assert loop.time() < deadline_s, f"{phase} never came: {seen}"
            await asyncio.sleep(0.02)

    async def until_archived(self, holds: Callable[[IncidentRecord], bool], incident: int) -> None:
        """Wait for a record as it is archived: when the job trains, is held, and at the end.

        Unlike a query, it is no work for the workflow.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.patience_s
        while True:
            record = self.archive.records.get(incident)
            if record is not None and holds(record):
                return
            assert loop.time() < deadline_s, f"never came true; last seen: {record}"
            await asyncio.sleep(0.01)

    async def until(self, holds: Callable[[IncidentRecord], bool], incident: int = 1) -> None:
        """Wait until an incident's record satisfies a condition."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.patience_s
        seen: object = "no incident"
        while loop.time() < deadline_s:
            # On a starved host a workflow task may time out; it is done again, and then it answers.
            with contextlib.suppress(RPCError):
                if (await self.status()).incidents >= incident:
                    seen = await self.record(incident)
                    if holds(seen):
                        return
            await asyncio.sleep(self.look_every_s)
        raise AssertionError(f"never came true; last seen: {seen}")


@contextlib.asynccontextmanager
async def controlled(
    address: str,
    spec: JobSpec,
    world: FakeWorld,
    earlier_code: tuple[CodeVersion, ...] = (),
    most_incidents: int = MOST_INCIDENTS,
    from_scratch: bool = False,
    max_events: int = MAX_EVENTS,
    machines_per_batch: int = MACHINES_PER_BATCH,
) -> AsyncGenerator[Control]:
    """A job of its own on the server, with a controller and an analyzer, and no machine yet."""
    client = await Client.connect(address, data_converter=DATA_CONVERTER)
    suffix = uuid.uuid4().hex[:8]
    spec = spec.model_copy(update={"name": f"{spec.name}-{suffix}"})
    # A queue of its own: no other test's controller takes what belongs into this archive.
    queue = f"{names.CONTROLLER_QUEUE}.{suffix}"
    archive = MemoryArchive()
    cluster = FakeCluster(world)
    evidence = f"memory://{spec.name}"

    def controller() -> Worker:
        return Worker(
            client,
            task_queue=queue,
            workflows=runtime.WORKFLOWS,
            activities=[
                *registry.cluster_activities(cluster),
                archive.save_incident,
                Webhook(os.environ).page,
                StackJudge(EvidenceStore(evidence)).judge,
            ],
            workflow_runner=runtime.workflow_runner(),
            workflow_failure_exception_types=list(runtime.WORKFLOW_FAILURE_TYPES),
            sticky_queue_schedule_to_start_timeout=runtime.STICKY_TIMEOUT,
        )

    async with Replaceable(controller) as controllers, contextlib.AsyncExitStack() as workers:
        await workers.enter_async_context(registry.analyzer(client, spec.name, world))
        job = JobInput(
            spec, "v1", "/code/v1", from_scratch, earlier_code, max_events, machines_per_batch
        )
        handle = await client.start_workflow(
            RunJob.run,
            args=[job, None],
            id=names.job_workflow_id(spec.name),
            task_queue=queue,
            task_timeout=options.WORKFLOW_TASK_TIMEOUT,
            search_attributes=story.job_attributes(spec.name),
        )
        control = Control(client, spec, world, archive, handle, workers, controllers)
        try:
            yield control
        finally:
            await _end_everything(control, most_incidents)


async def _end_everything(control: Control, most_incidents: int) -> None:
    """Leave no workflow behind: the next test shares the server."""
    # By id and not by listing: the time-skipping server cannot list.
    name = control.spec.name
    numbers = range(1, most_incidents + 1)
    for identifier in [names.job_workflow_id(name)] + [
        names.incident_workflow_id(name, number) for number in numbers
    ]:
        with contextlib.suppress(RPCError):
            await control.client.get_workflow_handle(identifier).terminate("test over")
