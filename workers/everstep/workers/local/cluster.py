"""A local run from its first process to its last: what `everstep run` does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import yaml
from temporalio.client import Client
from temporalio.service import RPCError

from everstep.agent import witness
from everstep.core.memory import CodeVersion
from everstep.spec.job import JobSpec
from everstep.workers.local import faults, ports
from everstep.workers.local.code import take_broken, take_previous, take_version
from everstep.workers.local.connecting import ServerOfRun
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.following import Follower
from everstep.workers.local.injecting import Injector
from everstep.workers.local.narrator import Narrator
from everstep.workers.local.ports import HOST
from everstep.workers.local.processes import Processes
from everstep.workers.settings import WorkerSettings
from everstep.workers.starting import start_job, still_open
from everstep.workflows.messages import JobInput, JobResult

FAREWELL_PATIENCE_S = 2.0


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
        self._processes = Processes(self._folder, narrator)
        self._injector = Injector(options.planned, self._processes, self._folder, narrator)
        self._client: Client | None = None

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
        for fault in self._injector.of_code:
            earlier.append(CodeVersion(version, str(code), proven=True))
            version, code = await asyncio.to_thread(
                take_broken, code, self._folder.code, fault.step
            )
            self._injector.note(fault, f"code version {version} fails after step {fault.step}")
        self._write_spec(code)
        given = self._settings(code)
        self._folder.write_state(telemetry=[HOST, given.telemetry_port])
        self._processes.use(given.environment())
        await self._processes.watch()
        client = await self._server(given).connect()
        spec = self._spec.model_copy(update={"environment": {}})
        job = JobInput(spec, version, str(code), self._options.from_scratch, tuple(earlier))
        await start_job(client, job)
        self._client = client
        await self._processes.start_worker("controller")
        await self._processes.start_worker("analyzer")
        for _ in machine_names(self._spec):
            await self._processes.add_machine()
        self._narrator.say(
            f"{len(machine_names(self._spec))} machines are getting ready, "
            f"{self._spec.standby_count()} of them on standby (each loads torch once)"
        )
        return await self._follower(client, given).to_the_end()

    def _settings(self, code: Path) -> WorkerSettings:
        return WorkerSettings(
            spec_file=self._folder.spec.absolute(),
            run_directory=self._folder.path.absolute(),
            secret_file=self._folder.secret.absolute(),
            code_directory=code,
            host=HOST,
            telemetry_host=HOST,
            telemetry_port=ports.free_port(HOST),
            inject_faults=self._injector.break_things,
            metrics_port=0 if self._options.metrics else None,
        )

    def _server(self, given: WorkerSettings) -> ServerOfRun:
        wanted = self._options
        return ServerOfRun(
            given, self._processes, self._folder, self._narrator,
            wanted.temporal_port, wanted.ui_port,
        )  # fmt: skip

    def _follower(self, client: Client, given: WorkerSettings) -> Follower:
        return Follower(
            client, self._spec.name, given, self._processes, self._injector, self._folder,
            self._narrator,
        )  # fmt: skip

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

    async def _stop(self) -> None:
        await self._end_job_elsewhere()
        await self._processes.stop()
        # Those of machines that were killed; agents remove their own.
        for pipe in self._folder.machines.glob(f"*/*/*{witness.PIPE}"):
            with contextlib.suppress(OSError):
                pipe.unlink()

    async def _end_job_elsewhere(self) -> None:
        """End a job whose machines go, where the server stays: else nobody could start it again."""
        if self._client is None or "server" in self._processes.all:
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
