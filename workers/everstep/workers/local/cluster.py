"""A local run from its first process to its last: what `everstep run` does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from everstep.core import names
from everstep.core.errors import EverstepError, InputError, PermanentError, TransientError
from everstep.core.model import IncidentRecord
from everstep.spec.job import JobSpec
from everstep.workers import runtime
from everstep.workers.local import faults, ports, preflight, server
from everstep.workers.local.children import Child
from everstep.workers.local.code import take_version
from everstep.workers.local.folder import RunFolder
from everstep.workers.settings import WorkerSettings
from everstep.workers.telemetry import Snapshot, watch
from everstep.workflows import options as workflow_options, story
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import JobInput, JobResult, JobStatus

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
PREFERRED_UI_PORT = 8233
SERVER_PATIENCE_S = 60.0
STOP_PATIENCE_S = 5.0
LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a person may say beside the spec.

    Attributes:
        folder: The run's folder, claimed.
        planned: Faults to inject.
        temporal_port: Wanted port of the Temporal server, or None.
        ui_port: Wanted port of its web UI, or None.
    """

    folder: RunFolder
    planned: tuple[faults.Fault, ...]
    temporal_port: int | None
    ui_port: int | None


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
        self._plan = faults.FaultPlan(options.planned, self._schedule)
        self._num_machines = 0
        self._environment: dict[str, str] = {}
        self._settings: WorkerSettings | None = None

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
            await asyncio.shield(self._stop())

    async def _run(self) -> JobResult:
        preflight.check_host(
            self._spec.layout().world_size, len(machine_names(self._spec)), str(self._folder.path)
        )
        version, code = await asyncio.to_thread(take_version, self._spec, self._folder.code)
        self._write_spec()
        self._settings = WorkerSettings(
            spec_file=self._folder.spec.absolute(),
            run_directory=self._folder.path.absolute(),
            secret_file=self._folder.secret.absolute(),
            code_directory=code,
            host=HOST,
            telemetry_host=HOST,
            telemetry_port=ports.free_port(HOST),
        )
        self._environment = {**os.environ, **self._settings.environment()}
        await self._start_server()
        client = await runtime.connect(SERVER_PATIENCE_S)
        if "server" in self._children:
            await server.keep_histories(client)
        handle = await self._start_job(client, version, code)
        await self._start_child("controller", ["everstep.workers.controller"])
        await self._start_child("analyzer", ["everstep.workers.analyzer"])
        for _ in machine_names(self._spec):
            await self._add_machine()
        self._narrator.say(
            f"{self._spec.machines} machines and {self._spec.standby_count()} standbys are "
            "getting ready (each loads torch once)"
        )
        return await self._see_through(client, handle)

    def _write_spec(self) -> None:
        """Keep the spec as it is now."""
        spec = self._spec.model_dump(mode="json", exclude_unset=True)
        self._folder.spec.touch(mode=0o600)
        text = yaml.safe_dump(spec, sort_keys=False)  # pyright: ignore[reportUnknownMemberType]
        self._folder.spec.write_text(text)

    # --- Starting ---------------------------------------------------------------------------------

    async def _start_server(self) -> None:
        named = os.environ.get("TEMPORAL_ADDRESS") or os.environ.get("TEMPORAL_PROFILE")
        if named:
            self._narrator.say(f"using the Temporal server that the environment names ({named})")
            self._folder.write_state(temporal=os.environ.get("TEMPORAL_ADDRESS", ""), ui="")
            return
        binary = server.find_binary()
        port = ports.wanted_port(HOST, self._options.temporal_port, "--temporal-port")
        ui_port = ports.wanted_port(
            HOST, self._options.ui_port, "--ui-port", preferred=PREFERRED_UI_PORT
        )
        address, ui = f"{HOST}:{port}", f"http://{HOST}:{ui_port}"
        os.environ["TEMPORAL_ADDRESS"] = address
        os.environ["TEMPORAL_NAMESPACE"] = server.NAMESPACE
        self._environment.update(TEMPORAL_ADDRESS=address, TEMPORAL_NAMESPACE=server.NAMESPACE)
        command = server.command(binary, self._folder.database.absolute(), HOST, port, ui_port)
        await self._start_child("server", ["everstep.workers.local.leash", *command])
        self._folder.write_state(temporal=address, ui=ui)
        self._narrator.say(f"Temporal's web UI: {ui}/namespaces/{server.NAMESPACE}/workflows")

    async def _start_job(
        self, client: Client, version: str, code: Path
    ) -> WorkflowHandle[RunJob, JobResult]:
        spec = self._spec.model_copy(update={"environment": {}})
        try:
            return await client.start_workflow(
                RunJob.run,
                args=[JobInput(spec, version, str(code)), None],
                id=names.job_workflow_id(self._spec.name),
                task_queue=names.CONTROLLER_QUEUE,
                task_timeout=workflow_options.WORKFLOW_TASK_TIMEOUT,
                search_attributes=story.job_attributes(self._spec.name),
                static_summary=f"Training job {self._spec.name}",
            )
        except WorkflowAlreadyStartedError as error:
            raise InputError(
                f"name ({self._spec.name})",
                "a job of this name already runs on this Temporal server",
                "Give the job another name, or end the other one.",
            ) from error

    async def _start_child(
        self, name: str, module_and_arguments: Sequence[str], keep_alive: bool = True
    ) -> Child:
        child = Child(
            name=name,
            command=[sys.executable, "-m", *module_and_arguments],
            environment=self._environment,
            log=self._folder.logs / f"{name}.log",
            keep_alive=keep_alive,
            on_restart=lambda who, code: self._narrator.say(
                f"{who} ended ({_ending(code)}) and was started again"
            ),
        )
        await child.start()
        self._children[name] = child
        return child

    async def _add_machine(self) -> str:
        machine = f"m{self._num_machines}"
        self._num_machines += 1
        self._agents[machine] = await self._start_child(
            f"agent-{machine}", ["everstep.workers.agent", machine], keep_alive=False
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
            return await result
        finally:
            for task in (result, *background):
                task.cancel()
            await asyncio.gather(result, *background, return_exceptions=True)

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
        given = self._settings
        assert given is not None  # noqa: S101 - set before anything is followed
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
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                status = await handle.query(RunJob.status)
                if status.phase != phase and status.phase == "training":
                    self._narrator.say("training")
                phase = status.phase
                self._fail_without_agents(status)
                if status.incidents:
                    incident_id = names.incident_workflow_id(self._spec.name, status.incidents)
                    incident = client.get_workflow_handle_for(ResolveIncident.run, incident_id)
                    self._narrator.incident(await incident.query(ResolveIncident.record))
            except RPCError as error:
                logger.info("cannot be asked now: %s", error)

    def _fail_without_agents(self, status: JobStatus) -> None:
        """An agent that ends before the job could start would be waited for in vain."""
        if status.assignment is not None:
            return
        for machine, child in self._agents.items():
            if child.pid == 0:
                lines = child.log.read_text(errors="replace").splitlines()
                raise PermanentError(
                    f"the agent of {machine} ended before it was ready: "
                    f"{lines[-1] if lines else 'it said nothing'} (log: {child.log})"
                )

    async def _take_requests(self) -> None:
        while True:
            for request in sorted(self._folder.requests.iterdir()):
                request.unlink()
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
            else:
                self._children[fault.kind.value.removesuffix("_killed")].kill()
        except TransientError as error:
            self._narrator.say(f"fault {fault} hit nobody: {error}")
            return
        at = f"{fault.target or fault.kind.value.removesuffix('_killed')}"
        self._folder.write_state(
            faults=[
                *self._folder.read_state().get("faults", []),
                {"fault": str(fault), "at_s": time.time()},
            ]
        )
        self._narrator.say(f"fault injected: SIGKILL to {at} ({fault})")

    # --- Stopping ---------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Stop everything, whoever needs others first: agents, then observers, then the server."""
        agents = [c for name, c in self._children.items() if name.startswith("agent-")]
        await asyncio.gather(*(child.stop(STOP_PATIENCE_S) for child in agents))
        rest = [c for c in self._children.values() if c not in agents and c.name != "server"]
        await asyncio.gather(*(child.stop(STOP_PATIENCE_S) for child in rest))
        if "server" in self._children:
            await self._children["server"].stop(STOP_PATIENCE_S)


def _ending(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
