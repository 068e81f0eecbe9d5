"""The agent of one machine. Run as `python -m everstep.workers.agent MACHINE`.

Joins the machine itself (`everstep.agent`) to the outside: orders come as Temporal activities on
the machine's own task queue, reports leave as signals to the job, steps and heartbeats go to the
analyzer.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import replace

from everstep.activities.evidence import EvidenceStore
from everstep.activities.trace import TraceActivities
from everstep.agent import link, process
from everstep.agent.config import MachineConfig
from everstep.agent.machine import Machine
from everstep.agent.probes.host import own_cgroup
from everstep.agent.probes.links import Relevance
from everstep.agent.probes.monitor import Monitor, MonitorConfig, Part
from everstep.agent.telemetry import TelemetryClient
from everstep.core import evidence
from everstep.core.errors import InputError
from everstep.core.model import Alert, MachineEvent, RankExit, RankProgress, RanksStarted
from everstep.core.senses.inspection import Inspection
from everstep.core.vocabulary import Observer, Symptom
from everstep.spec.job import JobSpec
from everstep.spec.load import read_spec
from everstep.workers import clusters, metrics, registry, runtime, settings, stopping
from everstep.workers.health import Health, polling
from everstep.workers.local.faults import faults_directory
from everstep.workers.local.folder import RunFolder
from everstep.workers.reports import Reporter

logger = logging.getLogger(__name__)

FAREWELL_PATIENCE_S = 1.0

OF_THE_NODE = frozenset({Part.KERNEL_LOG, Part.NETWORK})
"""What `everstep.workers.node` looks at, and a pod sees a part of at best."""


def alert_of(rank_exit: RankExit) -> Alert:
    """The alert for a rank that ended by itself; its last words come with the stop order's report.

    Thousands of ranks may end at once, and each alert goes through two histories.
    """
    return Alert(
        observer=Observer.AGENT,
        symptom=Symptom.PROCESS_CRASH,
        at_s=rank_exit.at_s,
        detail=f"rank {rank_exit.rank} on {rank_exit.machine} {evidence.describe_exit(rank_exit)}",
        attempt=rank_exit.attempt,
        machine=rank_exit.machine,
        rank=rank_exit.rank,
        rank_exit=replace(rank_exit, last_lines=()),
    )


def machine_config(name: str, given: settings.WorkerSettings, spec: JobSpec) -> MachineConfig:
    """What the machine is told of its job."""
    folder = RunFolder(given.run_directory)
    return MachineConfig(
        job=spec.name,
        machine=name,
        host=given.host,
        directory=folder.machines / name,
        command=tuple(spec.command),
        code_directory=given.code_directory,
        environment=dict(spec.environment),
        prewarm=tuple(spec.prewarm),
        parallelism=spec.parallelism.text(),
        output_dir=folder.output,
        gpus_per_machine=spec.gpus_per_machine,
        secret=given.secret(),
        backup_timeout_s=spec.checkpoint.backup_timeout_s,
        cgroup=own_cgroup(),
        faults_directory=faults_directory(folder.machines / name) if given.inject_faults else None,
        step_pattern=spec.detection.step_pattern,
        storage=None if spec.checkpoint.storage is None else spec.checkpoint.storage.policy(),
        replicated=tuple(spec.checkpoint.replicated),
        pod=given.pod_name,
        pod_uid=given.pod_uid,
        prepare=tuple(spec.code.prepare),
        prepare_timeout_s=spec.code.prepare_timeout_s,
    )


def monitor_config(
    name: str, given: settings.WorkerSettings, spec: JobSpec, environ: Mapping[str, str]
) -> MonitorConfig:
    """What the machine's senses look at."""
    of_ranks = {**environ, **spec.environment}
    folder = RunFolder(given.run_directory)
    return MonitorConfig(
        machine=name,
        paths=(str(folder.path), str(given.code_directory), "/dev/shm"),  # noqa: S108 - where checkpoints lie
        relevance=Relevance(
            nccl_socket_ifname=of_ranks.get("NCCL_SOCKET_IFNAME", ""),
            nccl_ib_hca=of_ranks.get("NCCL_IB_HCA", ""),
            addresses=(given.host,),
        ),
        own_cgroup=own_cgroup(),
        own_pids=lambda: process.strays(str((folder.machines / name).resolve()), None),
        accept_programs=given.kernel_log_of_programs,
        parts=frozenset(Part) - OF_THE_NODE if given.node_senses else frozenset(Part),
    )


async def main(name: str) -> int:
    """Serve until told to stop."""
    stop = stopping.stop_requested()
    given = settings.from_environment()
    clusters.share_files(given)
    spec = read_spec(given.spec_file)
    if not given.code_directory.is_dir():
        what = f"{given.code_directory} is no folder"
        raise InputError("EVERSTEP_CODE_DIRECTORY", what, "Name where the code lies here.")
    secret = given.secret()
    health = Health()
    await health.listen(given.host, given.health_port)
    client = await stopping.unless_stopped(stop, runtime.connect())
    reporter = Reporter(client, spec.name)
    monitor: Monitor | None = None
    telemetry = TelemetryClient(
        lambda: asyncio.ensure_future(
            link.open_link(given.telemetry_host, given.telemetry_port, secret, spec.name)
        ),
        name,
        os.getpid(),
        spec.detection.heartbeat_interval_s,
        lambda: () if monitor is None else monitor.slowed(),
    )

    def on_event(event: MachineEvent) -> None:
        if isinstance(event, RankProgress):
            telemetry.put(event)
        elif isinstance(event, RanksStarted):
            telemetry.put_start(event)
        elif isinstance(event, RankExit):
            reporter.put(alert_of(event))
        else:
            reporter.put(event)

    machine = Machine(machine_config(name, given, spec), on_event)
    telemetry_task = asyncio.create_task(telemetry.run())
    reporter_task = asyncio.create_task(reporter.run())
    senses_task: asyncio.Task[None] | None = None
    traces = TraceActivities(name, machine, EvidenceStore(given.evidence_url()))
    RunFolder(given.run_directory).output.mkdir(parents=True, exist_ok=True)
    job_is_over = False
    try:
        await machine.open()
        if given.watches_machine():
            monitor = Monitor(monitor_config(name, given, spec, os.environ), reporter.put)
            senses_task = asyncio.create_task(monitor.run())
        inspect = list[Inspection] if monitor is None else monitor.inspections
        told = metrics.AgentMetrics(machine, telemetry, reporter.alerts, inspect)
        metrics.serve(told, given, spec.name, f"agent-{name}")
        ended = runtime.job_ended(client, spec.name) if given.ends_with_job else None
        async with registry.agent(client, spec.name, name, machine, traces) as worker:
            health.ready = polling(client, worker)
            job_is_over = await stopping.until_stopped(stop, ended)
            await telemetry.farewell()
            await machine.close()
    finally:
        if senses_task is not None:
            senses_task.cancel()
            await asyncio.wait([senses_task], timeout=FAREWELL_PATIENCE_S)
        await machine.close()
        await asyncio.wait([telemetry_task], timeout=FAREWELL_PATIENCE_S)
        reporter_task.cancel()
    # A Job takes a pod that ends well for done, and never brings another in its place.
    return stopping.STOPPED if given.ends_with_job and not job_is_over else 0


if __name__ == "__main__":
    stopping.die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("machine", help="name of this machine, unique in the job")
    runtime.run_process(main(parser.parse_args().machine))
