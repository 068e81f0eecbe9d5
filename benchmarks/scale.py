"""Restarts, stop-time checks and a storm of alerts at 12, 120 and 1,200 machines of 8 ranks.

One Temporal server, set up as that of a local run; the controller's own process; and all machines
in one process (`benchmarks.scale_agents`), each with its queue, worker and reporter, which answer
at once with reports of the size that 8 ranks make. So what is measured is Everstep and Temporal
alone, on the cores of this machine.

- restart: a machine's agent is lost; all others are stopped, the machine is evicted, a standby gets
  its slot, the parts that are lacking are fetched, all are started, and a step of all is seen.
- storm: all ranks lose their peers at once, and each machine reports each of its ranks: from then
  until the incident is open, and that it is the only one.
- checks: nobody stands out in that, so all machines test themselves, then their links.
- history: the largest of all that this leaves.
- takeover: how long another controller reads the first incident anew, which has to be within a
  workflow task's time-out.

Run as `python -m benchmarks.scale [MACHINES ...]`; takes about five minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from temporalio.service import RPCError
from temporalio.worker import Replayer

from benchmarks.results import Result, conclude
from benchmarks.scale_bench import PATIENCE_S, Bench, benches
from everstep.agent.leash import leashed
from everstep.core import names
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Outcome, Rung
from everstep.workers import runtime
from everstep.workers.local import ports, server
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workflows import options
from everstep.workflows.job import RunJob

SIZES = (12, 120, 1_200)

RESTART_GOAL_S = 30.0
STORM_GOAL_S = 5.0
EVENTS_GOAL = 10_000
BYTES_GOAL_MIB = 5.0
GROWTH_GOAL = 1.0
"""Times that of the number of machines, from the smallest to the largest: no worse than linear."""


@dataclass(frozen=True)
class Measured:
    """One number of machines.

    Attributes:
        machines: How many.
        first_start_s: From the machines' word that they are there to a first step.
        restart_s: From the alert to a first step.
        checks_s: From the choice of the rung to its verdict.
        storm_s: From the first alert until an incident is open.
        storm_over_s: From the first alert to a first step again.
        incidents: How many the storm opened.
        events: Of the longest history.
        mib: Of the largest one.
        largest: Which one.
        takeover_s: To read the first incident anew.
        restart_cpu_s: Of each process, from the alert to the first step.
        memory_mib: Of each process at the end.
    """

    machines: int
    first_start_s: float
    restart_s: float
    checks_s: float
    storm_s: float
    storm_over_s: float
    incidents: int
    events: int
    mib: float
    largest: str
    takeover_s: float
    restart_cpu_s: dict[str, float]
    memory_mib: dict[str, float]


def trains(record: IncidentRecord) -> bool:
    """Whether a step of all ranks was seen."""
    return record.first_step_at_s is not None


def recovered(record: IncidentRecord) -> bool:
    """Whether it is over."""
    return record.outcome is Outcome.RECOVERED


async def phase(bench: Bench, wanted: str) -> None:
    """Wait until the job is in a phase."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(RPCError):
                if (await bench.job.query(RunJob.status)).phase == wanted:
                    return
            await asyncio.sleep(0.5)


def checks_s(record: IncidentRecord) -> float:
    """How long the stop-time checks of an incident took."""
    (climb,) = [climb for climb in record.climbs if climb.rung is Rung.CHECKS]
    begun = next(e for e in record.timeline if f"rung {Rung.CHECKS} begins" in e.text)
    return climb.at_s - begun.at_s


async def takeover_s(bench: Bench) -> float:
    """How long a controller that knows nothing of it reads the first incident."""
    identifier = names.incident_workflow_id(bench.spec.name, 1)
    history = await bench.client.get_workflow_handle(identifier).fetch_history()
    replayer = Replayer(
        workflows=runtime.WORKFLOWS,
        workflow_runner=runtime.workflow_runner(),
        data_converter=DATA_CONVERTER,
    )
    began_s = time.monotonic()
    await replayer.replay_workflow(history)
    return time.monotonic() - began_s


def say(machines: int, what: str, took_s: float) -> None:
    """Print a figure as soon as it is known."""
    print(f"  {machines} machines: {what} after {took_s:.2f} s", flush=True)


async def measure(bench: Bench, machines: int) -> Measured:
    """All that is measured at one number of machines."""
    joined_s = await bench.tell("join")
    await bench.tell("begin")
    first_start_s = time.time() - joined_s
    say(machines, "first start", first_start_s)
    await bench.tell("train")
    before = bench.usage()
    lost_s = await bench.tell("lose m7")
    lost = await bench.record(1, trains)
    cpu_s = {name: used.cpu_s - before[name].cpu_s for name, used in bench.usage().items()}
    await bench.tell("train")
    await bench.record(1, recovered)
    await phase(bench, "training")
    say(machines, "restart", (lost.first_step_at_s or 0.0) - lost_s)
    storm_s = await bench.tell("storm")
    opened_s = await bench.opened_at_s(2)
    say(machines, "storm: an incident", opened_s - storm_s)
    stormed = await bench.record(2, trains)
    await bench.tell("train")
    await bench.record(2, recovered)
    await phase(bench, "training")
    status = await bench.job.query(RunJob.status)
    finished_s = await bench.tell("finish")
    async with asyncio.timeout(PATIENCE_S):
        await bench.job.result()
    say(machines, "the last rank's end: the job's", time.time() - finished_s)
    events, mib, largest = await bench.largest()
    return Measured(
        machines,
        first_start_s,
        (lost.first_step_at_s or 0.0) - lost_s,
        checks_s(stormed),
        opened_s - storm_s,
        (stormed.first_step_at_s or 0.0) - storm_s,
        status.incidents - 1,
        events,
        mib,
        largest,
        await takeover_s(bench),
        cpu_s,
        {name: used.memory_mib for name, used in bench.usage().items()},
    )


def show(found: Measured) -> None:
    """Print what was measured, with what has no goal."""
    print(
        f"{found.machines} machines: first start {found.first_start_s:.1f} s, restart"
        f" {found.restart_s:.1f} s, checks {found.checks_s:.1f} s, storm: an incident after"
        f" {found.storm_s:.2f} s, training again after {found.storm_over_s:.1f} s; largest history"
        f" {found.largest}, {found.mib:.2f} MiB; longest {found.events} events; taken over within"
        f" {found.takeover_s:.1f} s",
        flush=True,
    )
    cpu = ", ".join(f"{name} {used:.1f} s" for name, used in found.restart_cpu_s.items())
    memory = ", ".join(f"{name} {used:.0f} MiB" for name, used in found.memory_mib.items())
    print(f"  CPU of the restart: {cpu}; memory: {memory}", flush=True)


def growth(small: Measured, large: Measured) -> float:
    """How many times the restart takes longer, over how many times the machines are more."""
    return (large.restart_s / small.restart_s) / (large.machines / small.machines)


def results(found: list[Measured]) -> list[Result]:
    """The goals, of which most concern the largest number of machines."""
    largest = found[-1]
    at = f"at_{largest.machines}"
    return [
        Result(f"restart_{at}", largest.restart_s, "s", "<=", RESTART_GOAL_S),
        Result("restart_growth_over_linear", growth(found[0], largest), "ratio", "<=", GROWTH_GOAL),
        Result(f"storm_{at}", largest.storm_s, "s", "<=", STORM_GOAL_S),
        Result(f"storm_incidents_{at}", largest.incidents, "incidents", "<=", 1),
        Result(
            f"takeover_{at}",
            largest.takeover_s,
            "s",
            "<=",
            options.workflow_task_timeout(largest.machines).total_seconds(),
        ),
        Result(f"history_{at}", largest.events, "events", "<=", EVENTS_GOAL),
        Result(f"history_{at}", largest.mib, "MiB", "<=", BYTES_GOAL_MIB),
    ]


async def main(sizes: list[int]) -> int:
    """Measure each number of machines on a server of its own."""
    found: list[Measured] = []
    for machines in sizes:
        with tempfile.TemporaryDirectory(prefix="everstep-scale-") as name:
            folder = Path(name)
            port = ports.free_port(ports.HOST)
            database = folder / f"{machines}.db"
            command = server.command(server.find_binary(), database, ports.HOST, port, None)
            quiet = asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(
                *leashed(command), stdout=quiet, stderr=quiet
            )
            try:
                server.use(f"{ports.HOST}:{port}")
                client = await runtime.connect(PATIENCE_S)
                async with benches(client, process.pid, folder, machines) as bench:
                    found.append(await measure(bench, machines))
                show(found[-1])
            finally:
                process.kill()
                await process.wait()
    for small, large in itertools.pairwise(found):
        times = large.restart_s / small.restart_s
        print(f"from {small.machines} to {large.machines} machines: {times:.1f} times as long")
    return conclude(results(found))


if __name__ == "__main__":
    runtime.run_process(main([int(size) for size in sys.argv[1:]] or list(SIZES)))
