"""What `benchmarks.detection` injects faults into: a Temporal server, jobs, and their real parts.

A job here is its workflow on the server, an analyzer, and one machine with one rank, put together
as the processes of Everstep put them together, all in this process but the rank. Nobody works on
the workflow: an alert is durable once the server has it in the workflow's history, with a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

from everstep.agent import link
from everstep.agent.config import MachineConfig
from everstep.agent.machine import Machine
from everstep.agent.telemetry import TelemetryClient
from everstep.core import names
from everstep.core.liveness import AgentWatch
from everstep.core.model import Alert, MachineEvent, RankExit, RankProgress, RanksStarted
from everstep.core.orders import RankStart, StartOrder, StopOrder
from everstep.core.progress import StepBoard
from everstep.core.senses.job import JobSenses
from everstep.spec.job import JobSpec
from everstep.workers.agent import alert_of
from everstep.workers.analyzer import job_limits, raise_silent
from everstep.workers.local import ports, server
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workers.reports import Reporter
from everstep.workers.telemetry import TelemetryServer
from everstep.workflows.job import RunJob
from everstep.workflows.messages import JobInput

HOST, SECRET = "127.0.0.1", b"of this benchmark"
PATIENCE_S = 60.0
STEP_S = 0.2
LEARNED_STEPS = 10

RANK = f"""
import json, math, os, pathlib, socket, time
from everstep.core import channel
sock = socket.socket(fileno=int(os.environ["EVERSTEP_CHANNEL_FD"]))
out = pathlib.Path(os.environ["EVERSTEP_OUTPUT_DIR"])
sock.sendall(channel.encode(channel.Hello()))
for step in range(1, 1_000_000):
    time.sleep({STEP_S})
    bad = (out / "bad").exists()
    if bad:
        (out / "bad").rename(out / "told")
        (out / "told").write_text(repr(time.time()))
    sock.sendall(channel.encode(channel.Report(step, math.nan if bad else 2.0, 1.0)))
"""


@contextlib.asynccontextmanager
async def temporal(folder: Path) -> AsyncGenerator[Client]:
    """A server of the benchmark's own, as a local run starts it."""
    port = ports.free_port(HOST)
    command = server.command(server.find_binary(), folder / "temporal.db", HOST, port, None)
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    try:
        yield await _client(f"{HOST}:{port}")
    finally:
        process.terminate()
        await process.wait()


async def _client(address: str) -> Client:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await Client.connect(address, data_converter=DATA_CONVERTER)
            except (RuntimeError, RPCError):
                await asyncio.sleep(0.1)


async def start_job(client: Client, name: str) -> JobSpec:
    """Start a job's workflow, on which nobody works."""
    spec = JobSpec.model_validate(
        {
            "name": name,
            "command": ["bash", "-c", "exec python rank.py"],
            "code": {"directory": "."},
            "machines": 1,
            "gpus_per_machine": 1,
            "parallelism": {"dp": 1},
        }
    )
    await client.start_workflow(
        RunJob.run,
        args=[JobInput(spec, "v1", "."), None],
        id=names.job_workflow_id(name),
        task_queue=names.CONTROLLER_QUEUE,
    )
    return spec


async def durable_alerts(client: Client, job: str) -> list[tuple[float, Alert]]:
    """Every alert that the job's workflow was sent, with the server's time of it."""
    found: list[tuple[float, Alert]] = []
    handle = client.get_workflow_handle(names.job_workflow_id(job))
    async for event in handle.fetch_history_events():
        signalled = event.workflow_execution_signaled_event_attributes
        if signalled.signal_name == "report_alerts":
            at_s = event.event_time.ToNanoseconds() / 1e9
            payloads = signalled.input.payloads
            (alerts,) = await client.data_converter.decode(payloads, [list[Alert]])
            found += [(at_s, alert) for alert in alerts]
    return found


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise RuntimeError(f"not within {PATIENCE_S:g} s: {what}") from error


class JobRig:
    """One job with one machine and one rank.

    Args:
        client: Of the server.
        spec: The job, whose workflow runs.
        folder: For all that it writes.
    """

    def __init__(self, client: Client, spec: JobSpec, folder: Path) -> None:
        self.name = spec.name
        self.out = folder / "out"
        self._folder = folder
        self._spec = spec
        self._reporter = Reporter(client, spec.name)
        self._watch = AgentWatch(
            spec.detection.agent_lost_after_s, spec.detection.reconnect_grace_s
        )
        self._senses = JobSenses(job_limits(spec))
        self._board = StepBoard(1, spec.detection.silent_after_s)
        self._analyzer = TelemetryServer(
            self._board,
            self._watch,
            self._senses,
            lambda seen: None,
            self._raise,
        )
        self._attempt = 0
        self._pid = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Start the analyzer and the machine."""
        self.out.mkdir(parents=True)
        (self._folder / "rank.py").write_text(RANK)
        self._listening = await self._analyzer.serve(HOST, 0, SECRET, self.name)
        self.port = int(self._listening.sockets[0].getsockname()[1])
        self._telemetry = TelemetryClient(
            lambda: asyncio.ensure_future(link.open_link(HOST, self.port, SECRET, self.name)),
            "m0",
            os.getpid(),
            self._spec.detection.heartbeat_interval_s,
        )
        self._machine = Machine(
            MachineConfig(
                job=self.name,
                machine="m0",
                host=HOST,
                directory=self._folder / "m0",
                command=self._spec.command,
                code_directory=self._folder,
                output_dir=self.out,
                parallelism=self._spec.parallelism.text(),
                gpus_per_machine=1,
                secret=SECRET,
            ),
            self._see,
        )
        self._info = await self._machine.open()
        self._tasks = [
            asyncio.create_task(self._reporter.run()),
            asyncio.create_task(
                raise_silent(self._watch, self._senses, self._board, self._reporter)
            ),
            asyncio.create_task(self._telemetry.run()),
        ]

    async def train(self) -> None:
        """Start the rank once more, and wait until the analyzer knows its rhythm."""
        if self._attempt:
            await self._machine.stop(StopOrder(self._attempt))
        self._attempt += 1
        order = StartOrder(
            attempt=self._attempt,
            slot=1,  # without a rendezvous store, which needs torch
            ranks=(RankStart(0, 0, None),),
            held_ranks=(),
            world_size=1,
            num_machines=1,
            master_host=HOST,
            master_port=self._info.rendezvous_port,
            restore_step=0,
            code_directory=str(self._folder),
        )
        self._pid = (await self._machine.start(order)).pids[0]
        board = self._analyzer.board
        await until(
            lambda: board.attempt == self._attempt and (board.steps().get(0) or 0) >= LEARNED_STEPS,
            f"{self.name} trains",
        )

    def hit(self, number: signal.Signals) -> None:
        """Send a signal to the rank."""
        os.kill(self._pid, number)

    def knows(self, machine: str) -> bool:
        """Whether the analyzer watches a machine."""
        return machine in self._watch.machines()

    def raised(self) -> int:
        """How many alerts the reporter was handed."""
        return sum(self._reporter.alerts.values())

    async def close(self) -> None:
        """End everything of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._machine.close()
        self._listening.close()
        self._analyzer.disconnect_all()

    def _raise(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            self._reporter.put(alert)

    def _see(self, event: MachineEvent) -> None:
        if isinstance(event, RankProgress):
            self._telemetry.put(event)
        elif isinstance(event, RanksStarted):
            self._telemetry.put_start(event)
        elif isinstance(event, RankExit):
            self._reporter.put(alert_of(event))


def spawn_agent(port: int, job: str, machine: str) -> subprocess.Popen[bytes]:
    """A process of its own that heartbeats as an agent does."""
    command = [sys.executable, "-m", "benchmarks.detection_agent", str(port), job, machine]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
