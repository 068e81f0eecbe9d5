"""Time from an injected fault to its alert in the job's workflow, beside the paper's (Table 3).

Real parts on a real Temporal server; the alert counts from the time that the server gave it in the
workflow's history, when it can be lost no more. Kernel lines are written to /dev/kmsg, links are
veth pairs in a network namespace, GPUs are those of a libnvidia-ml.so.1 of our own under the real
bindings, ranks and agents are processes that get signals. What this machine does not permit (no
root, no compiler) is left out and named. Run as `python -m benchmarks.detection [--count N]`; about
four minutes for the 20 of each that the goals are about.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from temporalio.client import Client
from tests.fakes.nvml.stub import FakeGpus, build

from benchmarks.detection_overhead import measure_overhead
from benchmarks.detection_rig import (
    PATIENCE_S,
    JobRig,
    durable_alerts,
    spawn_agent,
    start_job,
    temporal,
    until,
)
from benchmarks.results import Result, conclude
from everstep.agent.probes import kmsg
from everstep.agent.probes.monitor import Monitor, MonitorConfig
from everstep.core.errors import UnobservableError
from everstep.core.model import Alert
from everstep.core.vocabulary import Observer, Symptom, Verdict
from everstep.workers.reports import Reporter

T = TypeVar("T")

MACHINE_JOB = "detection-machine"
STAGGER_S = 0.15
"""Between two injections, so that they do not wait for each other."""

SETTLE_S = 2.0
"""For the last alerts to be delivered; what comes later is missed by more than any goal."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, how soon it has to be seen, and how soon the paper sees it."""

    name: str
    goal_s: float
    paper: str


KERNEL = Kind("kernel line", 1.0, "2 s")
NIC_DOWN = Kind("NIC down", 1.0, "30 s")
NIC_FLAP = Kind("NIC flap", 1.0, "30 s")
XID = Kind("Xid event", 1.0, "10 s")
GPU_LOST = Kind("GPU lost", 1.0, "10 s")
RANK_EXIT = Kind("rank exit", 1.0, "not given")
NAN = Kind("NaN", 1.0, "not given")
AGENT_KILLED = Kind("agent killed", 5.0, "not given")
AGENT_FROZEN = Kind("agent silent", 5.0, "not given")
SILENCE = Kind("ranks silent", 11.0, "600 s")


class Trials:
    """What was injected when, and what the server has of it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._injected: list[tuple[Kind, str, Symptom, str, float]] = []
        self.left_out: list[str] = []

    def inject(self, kind: Kind, job: str, symptom: Symptom, mark: str, at_s: float) -> None:
        """A fault was injected whose alert will have this symptom and this text in its detail."""
        self._injected.append((kind, job, symptom, mark, at_s))

    async def times(self) -> dict[Kind, list[float]]:
        """Seconds to each alert.

        Raises:
            RuntimeError: One was never raised.
        """
        alerts: dict[str, list[tuple[float, Alert]]] = {}
        found: dict[Kind, list[float]] = {}
        for kind, job, symptom, mark, at_s in self._injected:
            if job not in alerts:
                alerts[job] = await durable_alerts(self._client, job)
            moments_s = [
                durable_s
                for durable_s, alert in alerts[job]
                if alert.symptom is symptom and mark in alert.detail and durable_s >= at_s
            ]
            if not moments_s:
                raise RuntimeError(f"{kind.name}: no alert with {mark!r} in {job}")
            found.setdefault(kind, []).append(min(moments_s) - at_s)
        return found


# --- Machines -------------------------------------------------------------------------------------


class Senses:
    """A machine's senses, each alert of which is remembered and handed on."""

    def __init__(self, config: MonitorConfig, hand_on: Callable[[Alert], None]) -> None:
        self.alerts: list[Alert] = []

        def on_alert(alert: Alert) -> None:
            self.alerts.append(alert)
            hand_on(alert)

        self._monitor = Monitor(config, on_alert)

    async def __aenter__(self) -> Senses:
        self._task = asyncio.create_task(self._monitor.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def healthy(self, item: str) -> None:
        """Wait until something has been looked at and was in order."""
        await until(
            lambda: any(
                found.item == item and found.verdict is Verdict.HEALTHY
                for found in self._monitor.inspections()
            ),
            f"{item} is healthy",
        )

    async def told(self, mark: str) -> None:
        """Wait for an alert."""
        await until(lambda: any(mark in alert.detail for alert in self.alerts), mark)


async def kernel_lines(trials: Trials, reporter: Reporter, count: int) -> None:
    """Errors of file systems that are not there."""
    try:
        kmsg.KmsgReader().close()
        kmsg.KMSG.open("w").close()
    except (OSError, UnobservableError) as error:
        trials.left_out.append(f"{KERNEL.name}: {error}")
        return
    config = MonitorConfig(machine="m0", gpus=0, accept_programs=True)
    async with Senses(config, reporter.put) as senses:
        await senses.healthy("host.kernel_log")
        for _ in range(count):
            mark = uuid.uuid4().hex[:8]
            trials.inject(KERNEL, MACHINE_JOB, Symptom.DISK_FAULT, mark, time.time())
            with kmsg.KMSG.open("w") as device:
                device.write(f"<3>EXT4-fs error (device {mark}): ext4_find_entry:1\n")
            await senses.told(mark)


async def gpus(trials: Trials, reporter: Reporter, count: int, folder: Path) -> None:
    """Xids and lost GPUs, each of a machine whose GPUs were all healthy."""
    if shutil.which("gcc") is None:
        trials.left_out.append(f"{XID.name}, {GPU_LOST.name}: no C compiler")
        return
    library = build(folder)
    for number in range(count):
        fake = FakeGpus(library, folder / f"state-{number}")
        # For the process that asks the driver, which inherits them; nobody else here does.
        os.environ.update(fake.environment)
        machine = f"g{number}"
        config = MonitorConfig(machine, kernel_log=folder / "none", intervals_s=(60, 600, 60))

        def hand_on(alert: Alert, machine: str = machine) -> None:
            # All of these machines have the same GPUs.
            reporter.put(replace(alert, detail=f"{machine} {alert.detail}"))

        async with Senses(config, hand_on) as senses:
            await senses.healthy("gpu.present")
            trials.inject(XID, MACHINE_JOB, Symptom.GPU_MEMORY_ERROR, f"{machine} ", time.time())
            fake.xid(3, 95)
            await senses.told("0000:1d:00")
            trials.inject(
                GPU_LOST, MACHINE_JOB, Symptom.GPU_UNAVAILABLE, f"{machine} ", time.time()
            )
            fake.say(gpu6_error=15)
            await senses.told("0000:20:00")
        for name in fake.environment:
            del os.environ[name]


async def links(trials: Trials, reporter: Reporter, count: int) -> None:
    """Links that go down and stay down, and others that are up again at once."""
    name = f"es{uuid.uuid4().hex[:8]}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        trials.left_out.append(f"{NIC_DOWN.name}, {NIC_FLAP.name}: no network namespaces: {error}")
        return
    ports = [f"fab{number}" for number in range(2 * count)]
    process: asyncio.subprocess.Process | None = None
    try:
        for number, port in enumerate(ports):
            ip("-n", name, "link", "add", port, "type", "veth", "peer", "name", f"end{number}")
            for end in (port, f"end{number}"):
                ip("-n", name, "link", "set", end, "up")
        seconds = 30.0 + 4 * count
        process = await asyncio.create_subprocess_exec(
            "ip", "netns", "exec", name, sys.executable, "-m", "tests.fault.monitor_program",
            str(seconds), *ports, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert process.stdout is not None  # noqa: S101 - it was asked for
        await _told(process.stdout, "ready")
        for number, port in enumerate(ports):
            kind = NIC_DOWN if number < count else NIC_FLAP
            trials.inject(kind, MACHINE_JOB, Symptom.INFINIBAND_ERROR, f"{port}: ", time.time())
            ip("-n", name, "link", "set", f"end{number}", "down")
            if kind is NIC_FLAP:
                ip("-n", name, "link", "set", f"end{number}", "up")
            said = await _told(process.stdout, f"{port}: ")
            reporter.put(
                Alert(
                    Observer.AGENT, Symptom(str(said["symptom"])), float(str(said["at_s"])),
                    str(said["detail"]), machine="m0", subject=port,
                )
            )  # fmt: skip
            await asyncio.sleep(STAGGER_S)
    finally:
        if process is not None:
            process.kill()
            await process.wait()
        ip("netns", "delete", name)


async def _told(stream: asyncio.StreamReader, mark: str) -> dict[str, object]:
    """The next line of a monitor in a process of its own that says something."""
    async with asyncio.timeout(PATIENCE_S):
        while line := await stream.readline():
            if mark.encode() in line:
                said: dict[str, object] = json.loads(line)
                return said
    raise RuntimeError(f"the monitor ended and did not say {mark!r}")


# --- Ranks and agents -----------------------------------------------------------------------------


async def ranks(trials: Trials, client: Client, count: int, folder: Path) -> None:
    """Ranks that stop, report NaN and exit, and agents that go away; each in a job of its own."""
    rigs: list[JobRig] = []
    agents: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            spec = await start_job(client, f"detection-{number}")
            rigs.append(JobRig(client, spec, folder / spec.name))
            await rigs[-1].open()
            await rigs[-1].train()
        await _each(rigs, lambda rig: _silence(trials, rig))
        await _each(rigs, lambda rig: _nan(trials, rig))
        await _each(rigs, lambda rig: _exit(trials, rig))
        for rig in rigs:
            agents.append(spawn_agent(rig.port, rig.name, "gone"))
            await until(partial(rig.knows, "gone"), "the agent is there")
        pairs = list(zip(rigs, agents, strict=True))
        await _each(pairs, lambda pair: _agent(trials, *pair))
        await asyncio.sleep(SETTLE_S)
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
        await asyncio.gather(*(rig.close() for rig in rigs))


async def _each(things: Sequence[T], trial: Callable[[T], Awaitable[None]]) -> None:
    """One trial a thing, each begun a little after the one before."""

    async def late(number: int, thing: T) -> None:
        await asyncio.sleep(number * STAGGER_S)
        await trial(thing)

    await asyncio.gather(*(late(number, thing) for number, thing in enumerate(things)))


async def _raises_one(rig: JobRig, inject: Callable[[], Awaitable[None]]) -> None:
    before = rig.raised()
    await inject()
    await until(lambda: rig.raised() > before, f"{rig.name} raises something")


async def _silence(trials: Trials, rig: JobRig) -> None:
    async def stop() -> None:
        trials.inject(SILENCE, rig.name, Symptom.JOB_HANG, "rank 0", time.time())
        rig.hit(signal.SIGSTOP)

    await _raises_one(rig, stop)
    await rig.train()


async def _nan(trials: Trials, rig: JobRig) -> None:
    told = rig.out / "told"

    async def spoil() -> None:
        (rig.out / "bad").touch()
        # A step may last: the time counts from when the rank says it.
        await until(lambda: told.exists() and told.read_text(), "the rank reports NaN")
        trials.inject(NAN, rig.name, Symptom.NAN_VALUE, "loss", float(told.read_text()))

    await _raises_one(rig, spoil)


async def _exit(trials: Trials, rig: JobRig) -> None:
    async def kill() -> None:
        trials.inject(RANK_EXIT, rig.name, Symptom.PROCESS_CRASH, "rank 0", time.time())
        rig.hit(signal.SIGKILL)

    await _raises_one(rig, kill)


async def _agent(trials: Trials, rig: JobRig, agent: subprocess.Popen[bytes]) -> None:
    async def freeze() -> None:
        trials.inject(AGENT_FROZEN, rig.name, Symptom.AGENT_LOST, "no heartbeat", time.time())
        agent.send_signal(signal.SIGSTOP)

    async def kill() -> None:
        trials.inject(AGENT_KILLED, rig.name, Symptom.AGENT_LOST, "closed", time.time())
        agent.kill()

    await _raises_one(rig, freeze)
    agent.send_signal(signal.SIGCONT)
    await until(lambda: rig.knows("gone"), "the agent is back")
    await _raises_one(rig, kill)


# --- All together ---------------------------------------------------------------------------------


async def measure(count: int, folder: Path) -> tuple[dict[Kind, list[float]], list[str]]:
    """Inject everything; seconds to each alert, and what had to be left out."""
    async with temporal(folder) as client:
        trials = Trials(client)
        await start_job(client, MACHINE_JOB)
        reporter = Reporter(client, MACHINE_JOB)
        delivering = asyncio.create_task(reporter.run())
        await ranks(trials, client, count, folder)
        await kernel_lines(trials, reporter, count)
        await gpus(trials, reporter, count, folder)
        await links(trials, reporter, count)
        await asyncio.sleep(SETTLE_S)
        delivering.cancel()
        return await trials.times(), trials.left_out


def main() -> int:
    """Measure, print the table, and hold it against the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="trials of each kind")
    count = parser.parse_args().count
    # What is found is in the table.
    logging.getLogger("everstep").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="everstep-benchmark-") as top:
        times, left_out = asyncio.run(measure(count, Path(top)))
        overhead = measure_overhead(Path(top))
    print(f"{'fault':<14}{'median':>10}{'worst':>10}{'of':>4}{'goal':>8}  the paper")
    for kind, found_s in times.items():
        print(
            f"{kind.name:<14}{statistics.median(found_s):>8.3f} s{max(found_s):>8.3f} s"
            f"{len(found_s):>4}{kind.goal_s:>6.0f} s  {kind.paper}"
        )
    for text in left_out:
        print(f"not measured: {text}")
    print(f"an agent with {overhead.ranks} ranks takes {overhead.core_percent:.2f} % of a core")
    names = {kind: f"detection_{kind.name.lower().replace(' ', '_')}_worst" for kind in times}
    worst = [
        Result(names[kind], max(found_s), "s", "<=", kind.goal_s) for kind, found_s in times.items()
    ]
    costs = [
        Result("agent_core", overhead.core_percent, "percent", "<=", 2.0),
        Result("agent_memory", overhead.memory_mib, "MiB", "<=", 150.0),
    ]
    return conclude([*worst, *costs])


if __name__ == "__main__":
    sys.exit(main())
