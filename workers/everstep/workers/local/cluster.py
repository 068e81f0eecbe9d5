"""A local run from its first process to its last: what `everstep run` does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import yaml
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from everstep.core import updates
from everstep.core.errors import EverstepError, InputError, PermanentError, TransientError
from everstep.core.memory import CodeVersion
from everstep.core.record import IncidentRecord
from everstep.spec.job import JobSpec
from everstep.workers import handles, runtime
from everstep.workers.local import faults, ports, server
from everstep.workers.local.children import Child
from everstep.workers.local.code import take_broken, take_previous, take_version
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.guardian import Guardian
from everstep.workers.settings import WorkerSettings
from everstep.workers.starting import start_job, still_open
from everstep.workers.telemetry import Snapshot, watch
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import JobInput, JobResult, JobStatus

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
PREFERRED_UI_PORT = 8233
SERVER_PATIENCE_S = 60.0
NAMED_SERVER_PATIENCE_S = 5.0
"""A server that is there already answers at once; one that we start takes a second or two."""

STOP_PATIENCE_S = 3.0
"""For each of three rounds, so that nobody waits longer than 10 s after Ctrl-C."""

FAREWELL_PATIENCE_S = 2.0
LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a person may say beside the spec.

    Attributes:
        folder: The run's folder, claimed.
        planned: Faults to inject.
        temporal_port: Wanted port of the Temporal server, or None.
        ui_port: Wanted port of its web UI, or None.
        metrics: Whether agents and the analyzer serve Prometheus metrics.
        from_scratch: Whether checkpoints of earlier runs in storage are to be ignored.
    """

    folder: RunFolder
    planned: tuple[faults.Fault, ...]
    temporal_port: int | None
    ui_port: int | None
    metrics: bool = False
    from_scratch: bool = False


class Narrator(Protocol):
    """Who tells a person what happens."""

    def say(self, text: str) -> None:
        """Something happened."""
        ...

    def progress(self, snapshot: Snapshot) -> None:
        """The ranks are further."""
        ...

    def incident(self, record: IncidentRecord) -> None:
        """An incident stands like this now; told again after every change."""
        ...


def machine_names(spec: JobSpec) -> list[str]:
    """Names of the machines that a local run starts with, standbys last."""
    return [f"m{number}" for number in range(spec.machines + spec.standby_count())]


class LocalRun:
    """One run on this machine.

    Args:
        spec: The job.
        options: Everything else that a person said.
        narrator: Who tells a person what happens.
    """

    def __init__(self, spec: JobSpec, options: RunOptions, narrator: Narrator) -> None:
        self._spec = spec
        self._options = options
        self._folder = options.folder
        self._narrator = narrator
        self._children: dict[str, Child] = {}
        self._agents: dict[str, Child] = {}
        code = faults.FaultKind.CODE_ERROR
        self._code_faults = [fault for fault in options.planned if fault.kind is code]
        later = [fault for fault in options.planned if fault.kind is not code]
        self._plan = faults.FaultPlan(later, self._schedule)
        self._breaks_things = any(fault.kind not in faults.KILLED for fault in options.planned)
        self._num_machines = 0
        self._environment: dict[str, str] = {}
        self._settings: WorkerSettings | None = None
        self._client: Client | None = None
        self._guardian = Guardian(self._folder.machines.absolute())

    async def run(self) -> JobResult:
        """Start everything, see the job through, stop everything.

        Raises:
            InputError: Something that the run needs is not there.
            PermanentError: The job failed.
            asyncio.CancelledError: A person stopped the run; everything is stopped by then.
        """
        try:
            return await self._run()
        finally:
            await _to_its_end(self._stop())

    async def _run(self) -> JobResult:
        self._folder.write_state(
            job=self._spec.name, code_source=self._spec.code.model_dump(exclude_none=True)
        )
        version, code = await asyncio.to_thread(take_version, self._spec, self._folder.code)
        earlier = await asyncio.to_thread(take_previous, self._spec, self._folder.code)
        for fault in self._code_faults:
            earlier.append(CodeVersion(version, str(code), proven=True))
            version, code = await asyncio.to_thread(
                take_broken, code, self._folder.code, fault.step
            )
            self._note_fault(fault, f"code version {version} fails after step {fault.step}")
        self._write_spec(code)
        self._settings = WorkerSettings(
            spec_file=self._folder.spec.absolute(),
            run_directory=self._folder.path.absolute(),
            secret_file=self._folder.secret.absolute(),
            code_directory=code,
            host=HOST,
            telemetry_host=HOST,
            telemetry_port=ports.free_port(HOST),
            inject_faults=self._breaks_things,
            metrics_port=0 if self._options.metrics else None,
        )
        self._environment = {**os.environ, **self._settings.environment()}
        self._folder.write_state(telemetry=[HOST, self._settings.telemetry_port])
        await self._guardian.start()
        client = await self._server()
        spec = self._spec.model_copy(update={"environment": {}})
        job = JobInput(spec, version, str(code), self._options.from_scratch, tuple(earlier))
        handle = await start_job(client, job)
        self._client = client
        await self._start_worker("controller")
        await self._start_worker("analyzer")
        for _ in machine_names(self._spec):
            await self._add_machine()
        self._narrator.say(
            f"{len(machine_names(self._spec))} machines are getting ready, "
            f"{self._spec.standby_count()} of them on standby (each loads torch once)"
        )
        return await self._see_through(client, handle)

    def _write_spec(self, code: Path) -> None:
        """Keep the spec as it is now, for processes that may start when its code has moved."""
        spec = self._spec.model_dump(mode="json", exclude_unset=True)
        # What prepares a version prepares this copy, too.
        spec["code"] = {**spec["code"], "directory": str(code)}
        for source in ("git", "ref", "previous"):
            spec["code"].pop(source, None)
        self._folder.spec.touch(mode=0o600)
        text = yaml.safe_dump(spec, sort_keys=False)  # pyright: ignore[reportUnknownMemberType]
        self._folder.spec.write_text(text)

    # --- Starting ---------------------------------------------------------------------------------

    async def _server(self) -> Client:
        """A client of the server that the environment names, else of one that is started."""
        if (named := server.named_by_environment()) is not None:
            return await self._named_server(named)
        return await self._own_server()

    async def _named_server(self, named: str) -> Client:
        self._narrator.say(f"using the Temporal server that the environment names ({named})")
        try:
            client = await runtime.connect(NAMED_SERVER_PATIENCE_S)
        except TransientError as error:
            raise InputError(
                f"TEMPORAL_ADDRESS or TEMPORAL_PROFILE ({named})",
                str(error),
                "Start it, correct the variable, or unset it for a server of the run's own.",
            ) from error
        if registered := await server.register_search_attributes(client):
            self._narrator.say(f"registered search attributes there: {', '.join(registered)}")
        where = {
            "own": False,
            "address": client.service_client.config.target_host,
            "namespace": client.namespace,
        }
        self._folder.write_state(temporal=where, ui="")
        return client

    async def _own_server(self) -> Client:
        binary = server.find_binary()
        # Another run may take a port between our look and our server's: then others are tried.
        for preferred_ui_port in (PREFERRED_UI_PORT, None):
            try:
                return await self._try_server(binary, preferred_ui_port)
            except InputError:
                raise
            except PermanentError as error:
                logger.info("%s; trying again", error)
                await self._children.pop("server").stop(STOP_PATIENCE_S)
        return await self._try_server(binary, None)

    async def _try_server(self, binary: str, preferred_ui_port: int | None) -> Client:
        port = ports.wanted_port(HOST, self._options.temporal_port, "--temporal-port")
        ui_port = ports.wanted_port(
            HOST, self._options.ui_port, "--ui-port", preferred=preferred_ui_port
        )
        address, ui = f"{HOST}:{port}", f"http://{HOST}:{ui_port}"
        server.use(address)
        self._environment = {**os.environ, **self._given().environment()}
        command = server.command(binary, self._folder.database.absolute(), HOST, port, ui_port)
        child = await self._start_child("server", command)
        client = await self._first_answer(child)
        await server.keep_histories(client)
        self._folder.write_state(temporal={"own": True, "address": address}, ui=ui)
        self._narrator.say(f"Temporal's web UI: {ui}/namespaces/{server.NAMESPACE}/workflows")
        return client

    async def _first_answer(self, child: Child) -> Client:
        """Connect to a server that was just started; one that ends now would end every time.

        Raises:
            PermanentError: It ended.
            TransientError: It does not answer.
        """
        connecting = asyncio.create_task(runtime.connect(SERVER_PATIENCE_S))
        try:
            while not connecting.done():
                await asyncio.wait([connecting], timeout=0.1)
                if child.restarts:
                    raise PermanentError(
                        f"the Temporal server does not start: {_last_line(child.log)}"
                    )
            return await connecting
        finally:
            connecting.cancel()

    def _given(self) -> WorkerSettings:
        assert self._settings is not None  # noqa: S101 - set before anything is started
        return self._settings

    async def _start_child(
        self, name: str, command: Sequence[str], keep_alive: bool = True
    ) -> Child:
        child = Child(
            name=name,
            command=command,
            environment=self._environment,
            log=self._folder.logs / f"{name}.log",
            keep_alive=keep_alive,
            on_restart=lambda who, code: self._narrator.say(
                f"{who} ended ({_ending(code)}) and was started again"
            ),
        )
        self._children[name] = child
        await child.start()
        return child

    async def _start_worker(self, name: str, *arguments: str, keep_alive: bool = True) -> Child:
        """Start one of our own processes; an agent's name begins with its kind."""
        module = f"everstep.workers.{name.partition('-')[0]}"
        return await self._start_child(name, [sys.executable, "-m", module, *arguments], keep_alive)

    async def _add_machine(self) -> str:
        machine = f"m{self._num_machines}"
        self._num_machines += 1
        self._agents[machine] = await self._start_worker(
            f"agent-{machine}", machine, keep_alive=False
        )
        return machine

    # --- While it runs ----------------------------------------------------------------------------

    async def _see_through(
        self, client: Client, handle: WorkflowHandle[RunJob, JobResult]
    ) -> JobResult:
        result = asyncio.create_task(self._result(handle))
        background = [
            asyncio.create_task(self._follow_steps()),
            asyncio.create_task(self._follow_story(client, handle)),
            asyncio.create_task(self._take_requests()),
        ]
        try:
            # The others never end; one that fails takes the run with it.
            await asyncio.wait([result, *background], return_when=asyncio.FIRST_COMPLETED)
            for follower in background:
                if follower.done():
                    follower.result()
            finished = await result
            await self._keep_last_status(handle)
            for fault in self._plan.waiting:
                self._narrator.say(f"fault {fault} was never due: no such step was reported")
            return finished
        finally:
            for task in (result, *background):
                task.cancel()
            await asyncio.gather(result, *background, return_exceptions=True)

    async def _keep_last_status(self, handle: WorkflowHandle[RunJob, JobResult]) -> None:
        """Keep who held which slot: once the server is gone, nobody can be asked."""
        with contextlib.suppress(RPCError):
            status = await handle.query(RunJob.status)
            slots = () if status.assignment is None else status.assignment.machine_names()
            self._folder.write_state(
                slots=list(slots),
                standbys=[info.machine for info in status.pool],
                standby_plan=None if status.standbys is None else asdict(status.standbys),
                evicted=list(status.evicted),
                job_started_at_s=status.started_at_s,
                notes=[[note.at_s, note.text] for note in status.notes],
                updates=[
                    {**asdict(one), "outcome": updates.outcome(one, status.codes)}
                    for one in status.updates
                ],
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

    async def _result(self, handle: WorkflowHandle[RunJob, JobResult]) -> JobResult:
        while True:
            try:
                return await handle.result()
            except WorkflowFailureError as error:
                raise PermanentError(f"the job failed: {error.cause}") from error
            except RPCError as error:
                logger.info("the server does not answer: %s", error)
                await asyncio.sleep(LOOK_EVERY_S)

    async def _follow_steps(self) -> None:
        """Tell of steps and fire the faults that they make due; the analyzer may be away."""
        given = self._given()
        while True:
            try:
                following = watch(
                    given.telemetry_host, given.telemetry_port, given.secret(), self._spec.name
                )
                async with contextlib.aclosing(following):
                    async for snapshot in following:
                        self._narrator.progress(snapshot)
                        if snapshot.slowest is not None:
                            self._plan.reached(snapshot.slowest)
            except (OSError, EverstepError, asyncio.IncompleteReadError) as error:
                logger.info("no analyzer to follow: %s", error)
            await asyncio.sleep(0.05)

    async def _follow_story(
        self, client: Client, handle: WorkflowHandle[RunJob, JobResult]
    ) -> None:
        """Tell of incidents as they go, and of agents that end before they could join."""
        phase = ""
        told: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                status = await handle.query(RunJob.status)
                noted = [note.text for note in status.notes] + [a.detail for a in status.noted]
                for text in noted:
                    if text not in told:
                        told.add(text)
                        self._narrator.say(text)
                if status.phase != phase and status.phase == "training":
                    self._narrator.say("all ranks are started; the first step takes longest")
                    self._plan.reached(0)
                phase = status.phase
                self._fail_without_agents(status)
                if status.incidents:
                    incident = handles.of_incident(client, self._spec.name, status.incidents)
                    self._narrator.incident(await incident.query(ResolveIncident.record))
            except RPCError as error:
                logger.info("cannot be asked now: %s", error)

    def _fail_without_agents(self, status: JobStatus) -> None:
        """An agent that ends before the job could start would be waited for in vain."""
        if status.assignment is not None:
            return
        for machine, child in self._agents.items():
            if child.pid == 0:
                raise PermanentError(
                    f"the agent of {machine} ended before it was ready: {_last_line(child.log)}"
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
                machine = await self._add_machine()
                self._narrator.say(f"machine {machine} added on request; it is getting ready")
            await asyncio.sleep(LOOK_EVERY_S)

    def _schedule(self, fault: faults.Fault) -> None:
        if fault.delay_s == 0:
            self._fire(fault)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(fault.delay_s, self._fire, fault)

    def _fire(self, fault: faults.Fault) -> None:
        try:
            if fault.kind is faults.FaultKind.RANK_KILLED:
                faults.kill_rank(int(fault.target), self._folder.machines)
            elif fault.kind is faults.FaultKind.MACHINE_LOST:
                faults.kill_machine(self._children[f"agent-{fault.target}"].pid)
            elif fault.kind in faults.BROKEN:
                faults.break_machines(fault, self._folder.machines)
                self._note_fault(fault, faults.BROKEN[fault.kind])
                return
            else:
                self._children[fault.kind.value.removesuffix("_killed")].kill()
        except TransientError as error:
            self._narrator.say(f"fault {fault} hit nobody: {error}")
            return
        victim = fault.kind.value.removesuffix("_killed").removesuffix("_lost")
        at = f"{victim} {fault.target}".strip()
        self._note_fault(fault, f"SIGKILL to {at}")

    def _note_fault(self, fault: faults.Fault, what: str) -> None:
        entry = {"fault": str(fault), "at_s": time.time()}
        known = self._folder.read_state().get("faults", [])
        self._folder.write_state(faults=[*known, entry])
        self._narrator.say(f"fault injected: {what} ({fault})")

    # --- Stopping ---------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Stop everything, whoever needs others first: agents, then observers, then the server."""
        await self._end_job_elsewhere()
        agents = [c for name, c in self._children.items() if name.startswith("agent-")]
        await asyncio.gather(*(child.stop(STOP_PATIENCE_S) for child in agents))
        rest = [c for c in self._children.values() if c not in agents and c.name != "server"]
        await asyncio.gather(*(child.stop(STOP_PATIENCE_S) for child in rest))
        if "server" in self._children:
            await self._children["server"].stop(STOP_PATIENCE_S)
        await self._guardian.dismiss()

    async def _end_job_elsewhere(self) -> None:
        """End a job whose machines go, where the server stays: else nobody could start it again."""
        if self._client is None or "server" in self._children:
            return
        patience = timedelta(seconds=FAREWELL_PATIENCE_S)
        try:
            async for found in self._client.list_workflows(
                still_open(self._spec.name), rpc_timeout=patience
            ):
                await self._client.get_workflow_handle(found.id).terminate(
                    reason="the run that had its machines was stopped", rpc_timeout=patience
                )
        except RPCError as error:
            self._narrator.say(f"the job may still be open on the server: {error.message}")


async def _to_its_end(work: Coroutine[None, None, None]) -> None:
    """Await work that nothing may cut short, neither a second Ctrl-C nor a first one."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return f"{lines[-1] if lines else 'it said nothing'} (log: {log})"


def _ending(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
