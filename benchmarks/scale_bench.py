"""The processes of one measurement of `benchmarks.scale`, and what can be asked of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from everstep.activities.archive import load_incidents
from everstep.core import names
from everstep.core.record import IncidentRecord
from everstep.spec.job import JobSpec
from everstep.workers.local import ports
from everstep.workers.local.folder import RunFolder
from everstep.workers.settings import WorkerSettings
from everstep.workflows import options, story
from everstep.workflows.job import RunJob
from everstep.workflows.messages import JobInput, JobResult

PATIENCE_S = 400.0
STANDBYS = 2
MIB = 1 << 20


@dataclass(frozen=True)
class Usage:
    """What a process has used so far."""

    cpu_s: float
    memory_mib: float


def spec_of(machines: int) -> JobSpec:
    """A job of the paper's kind: TP 8, PP as deep as it divides, DP."""
    pp = next(pp for pp in (8, 4, 2, 1) if machines % pp == 0)
    return JobSpec.model_validate(
        {
            "name": f"scale-{machines}",
            "command": ["python", "train.py"],
            "code": {"directory": "."},
            "machines": machines,
            "gpus_per_machine": 8,
            "parallelism": {"tp": 8, "pp": pp, "dp": machines // pp, "order": "tp-pp-dp"},
            "standby": {"count": STANDBYS},
            "ladder": {"evidence_window_s": 0.2, "probation_s": 0.5, "probation_steps": 1},
        }
    )


class Bench:
    """The processes of one measurement.

    Args:
        client: Of the server.
        spec: The job.
        folder: The run's.
        job: Its workflow.
        agents: The machines' process.
        processes: All, by what they are called in figures.
    """

    def __init__(
        self,
        client: Client,
        spec: JobSpec,
        folder: RunFolder,
        job: WorkflowHandle[RunJob, JobResult],
        agents: asyncio.subprocess.Process,
        processes: dict[str, psutil.Process],
    ) -> None:
        self.client = client
        self.spec = spec
        self.job = job
        self._folder = folder
        self._agents = agents
        self._processes = processes

    async def tell(self, word: str) -> float:
        """Have the machines do something; when it was told."""
        told_s = time.time()
        assert self._agents.stdin is not None  # noqa: S101 - a pipe
        self._agents.stdin.write(f"{word}\n".encode())
        await self.heard(word)
        return told_s

    async def heard(self, word: str) -> None:
        """Wait until the machines say so."""
        assert self._agents.stdout is not None  # noqa: S101 - a pipe
        async with asyncio.timeout(PATIENCE_S):
            while not (line := await self._agents.stdout.readline()).startswith(word.encode()):
                if not line:
                    raise RuntimeError("the machines' process has ended")

    async def record(self, number: int, holds: Callable[[IncidentRecord], bool]) -> IncidentRecord:
        """An incident as it is archived, once it holds."""
        seen: IncidentRecord | None = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    known = {r.incident: r for r in load_incidents(self._folder.incidents)}
                    seen = known.get(number)
                    if seen is not None and holds(seen):
                        return seen
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise RuntimeError(f"incident {number} never came to it; last seen: {seen}") from error

    def usage(self) -> dict[str, Usage]:
        """What every process has used so far."""
        found: dict[str, Usage] = {}
        for name, process in self._processes.items():
            times = process.cpu_times()
            memory = process.memory_info().rss / MIB
            found[name] = Usage(times.user + times.system, memory)
        return found

    async def opened_at_s(self, number: int) -> float:
        """When an incident's workflow was begun."""
        identifier = names.incident_workflow_id(self.spec.name, number)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(RPCError):
                    described = await self.client.get_workflow_handle(identifier).describe()
                    return described.start_time.timestamp()
                await asyncio.sleep(0.05)

    async def largest(self) -> tuple[int, float, str]:
        """Events, MiB and name of the longest and the largest history that there is."""
        events, size, name = 0, 0, ""
        async for execution in self.client.list_workflows():
            handle = self.client.get_workflow_handle(execution.id, run_id=execution.run_id)
            info = (await handle.describe()).raw_description.workflow_execution_info
            if f"/{self.spec.name}" not in execution.id:
                continue
            events = max(events, info.history_length)
            if info.history_size_bytes > size:
                size, name = info.history_size_bytes, execution.id
        return events, size / MIB, name


@contextlib.asynccontextmanager
async def benches(client: Client, pid: int, folder: Path, machines: int) -> AsyncGenerator[Bench]:
    """Start the job, a controller and the machines."""
    spec = spec_of(machines)
    run = RunFolder(folder / spec.name)
    run.requests.mkdir(parents=True)
    run.secret.write_text(secrets.token_hex())
    text = yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True))  # pyright: ignore[reportUnknownMemberType]
    run.spec.write_text(text)
    given = WorkerSettings(
        spec_file=run.spec, run_directory=run.path, secret_file=run.secret,
        code_directory=folder, telemetry_port=ports.free_port(ports.HOST),
    )  # fmt: skip
    environment = {**os.environ, **given.environment()}
    job = await client.start_workflow(
        RunJob.run,
        args=[JobInput(spec, "v1", "/opt/train"), None],
        id=names.job_workflow_id(spec.name),
        task_queue=names.CONTROLLER_QUEUE,
        task_timeout=options.workflow_task_timeout(machines),
        search_attributes=story.job_attributes(spec.name),
    )
    logs = contextlib.ExitStack()

    async def start(module: str, *arguments: str) -> asyncio.subprocess.Process:
        log = logs.enter_context((folder / f"{spec.name}-{module}.log").open("wb"))
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments,
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip

    controller = await start("everstep.workers.controller")
    agents = await start("benchmarks.scale_agents", spec.name, str(machines), str(STANDBYS))
    processes = {"server": pid, "controller": controller.pid, "agents": agents.pid}
    bench = Bench(
        client, spec, run, job, agents, {n: psutil.Process(p) for n, p in processes.items()}
    )
    try:
        await bench.heard("ready")
        yield bench
    finally:
        for process in (controller, agents):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        logs.close()
