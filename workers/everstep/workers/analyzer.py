"""The analyzer: one per job, soft state only. Run as `python -m everstep.workers.analyzer`.

Sees the telemetry of all ranks, raises an alert when an agent is lost and when what ranks say, or
their silence, means a fault, and answers how far the job is. Killed and started again it asks the
job whom to expect, and the agents tell it the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from everstep.core.liveness import AgentWatch
from everstep.core.model import Alert, StepSeen
from everstep.core.progress import StepBoard
from everstep.core.senses.job import JobLimits, JobSenses
from everstep.core.senses.silence import SilenceLimits
from everstep.core.slow.sense import SlowSense
from everstep.core.vocabulary import Observer, Symptom
from everstep.spec.job import JobSpec
from everstep.spec.load import read_spec
from everstep.workers import clusters, handles, metrics, registry, runtime, settings, stopping
from everstep.workers.account import Account
from everstep.workers.health import Health, polling
from everstep.workers.local.folder import RunFolder
from everstep.workers.reports import Reporter
from everstep.workers.steps import StepLog, load_steps
from everstep.workers.telemetry import TelemetryServer
from everstep.workflows.job import RunJob

logger = logging.getLogger(__name__)

LONGEST_NAP_S = 0.1
"""How late a lost agent may be told beyond its grace, and ranks that hang beyond their limit."""

SHORTEST_NAP_S = 0.005

ASLEEP_AFTER_S = 0.25
"""Lateness from which on this process counts as not having listened."""


def job_limits(spec: JobSpec) -> JobLimits:
    """What the spec says of when ranks' reports mean a fault."""
    detection = spec.detection
    return JobLimits(
        SilenceLimits(
            step_times=detection.hang_after_step_times,
            at_least_s=detection.hang_after_at_least_s,
            first_step_s=spec.ladder.first_step_timeout_s,
            phase_s=detection.phase_timeout_s,
        ),
        jump_ratio=detection.jump_ratio,
        slowdown_ratio=detection.slowdown_ratio,
        expected=detection.step_pattern is not None,
    )


async def raise_silent(
    watch: AgentWatch, senses: JobSenses, board: StepBoard, reporter: Reporter
) -> None:
    """Raise an alert for every agent that is lost, and for ranks that hang, for ever.

    Where this process itself did not run for a while, messages may lie unread: that is no silence.
    """
    awake_s = time.time()
    while True:
        now_s = time.time()
        if now_s - awake_s > ASLEEP_AFTER_S:
            logger.warning("did not run for %.1f s; nobody is held to that time", now_s - awake_s)
            watch.excuse(now_s - awake_s)
            senses.excuse(now_s - awake_s)
        for lost in watch.take_lost(now_s):
            logger.warning("agent of %s is lost: %s", lost.machine, lost.reason)
            senses.lost(lost.machine)
            detail = f"agent of {lost.machine} lost: {lost.reason}"
            newest = board.newest
            reporter.put(
                Alert(
                    Observer.ANALYZER,
                    Symptom.AGENT_LOST,
                    now_s,
                    detail,
                    machine=lost.machine,
                    step=newest.step if newest and newest.attempt == board.attempt else None,
                )
            )
        for alert in senses.look(now_s):
            logger.warning("%s", alert.detail)
            reporter.put(alert)
        due_s = watch.next_due_s()
        nap_s = LONGEST_NAP_S if due_s is None else due_s - time.time()
        nap_s = min(LONGEST_NAP_S, max(SHORTEST_NAP_S, nap_s))
        awake_s = time.time() + nap_s
        await asyncio.sleep(nap_s)


async def expect_known(client: Client, job: str, watch: AgentWatch) -> None:
    """Expect every machine that the job knows, so that one that died meanwhile is missed."""
    handle = handles.of_job(client, job)
    while True:
        try:
            status = await handle.query(RunJob.status)
        except (RPCError, WorkflowQueryFailedError) as error:
            logger.info("the job cannot be asked yet: %s", error)
            await asyncio.sleep(1.0)
            continue
        slots = () if status.assignment is None else status.assignment.slots
        for info in (*slots, *status.pool):
            watch.expect(info.machine, time.time())
        return


async def keep_state(client: Client, job: str, run_directory: Path) -> None:
    """Write into the run's folder what commands read there, as `everstep run` does elsewhere."""
    folder = RunFolder(run_directory)
    config = client.service_client.config
    where = {"own": False, "address": config.target_host, "namespace": client.namespace}
    folder.write_state(job=job, phase="running", in_cluster=True, temporal=where, ui="")
    await runtime.job_ended(client, job)
    folder.write_state(phase="finished", ended_at_s=time.time())


async def main() -> int:
    """Serve until told to stop."""
    stop = stopping.stop_requested()
    given = settings.from_environment()
    clusters.share_files(given)
    # Not `load_spec`: the code need not lie where the analyzer runs.
    spec = read_spec(given.spec_file)
    health = Health()
    await health.listen(given.host, given.health_port)
    given.run_directory.mkdir(parents=True, exist_ok=True)
    steps_file = RunFolder(given.run_directory).steps
    account = Account(load_steps(steps_file))
    steps = StepLog(steps_file)
    watch = AgentWatch(spec.detection.agent_lost_after_s, spec.detection.reconnect_grace_s)
    votes = spec.detection.votes()
    slow = None if votes is None else SlowSense(spec.layout(), votes)
    senses = JobSenses(job_limits(spec), slow)
    client = await stopping.unless_stopped(stop, runtime.connect())
    reporter = Reporter(client, spec.name)

    def on_alerts(alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            logger.warning("%s", alert.detail)
            reporter.put(alert)

    def on_step(seen: StepSeen) -> None:
        steps.write(seen)
        account.step(seen)

    board = StepBoard(spec.layout().world_size, spec.detection.silent_after_s)
    server = TelemetryServer(board, watch, senses, on_step, on_alerts)
    listening = await server.serve(
        given.telemetry_host, given.telemetry_port, given.secret(), spec.name
    )
    told = metrics.AnalyzerMetrics(server, reporter.alerts, account)
    metrics.serve(told, given, spec.name, "analyzer")
    # Without one of these, hangs and lost machines would go unseen.
    needed = [
        asyncio.create_task(reporter.run()),
        asyncio.create_task(raise_silent(watch, senses, board, reporter)),
    ]
    background = [asyncio.create_task(expect_known(client, spec.name, watch))]
    if given.metrics_port is not None:
        background.append(asyncio.create_task(account.follow(client, spec.name)))
    if given.cluster == "kubernetes":
        background.append(asyncio.create_task(keep_state(client, spec.name, given.run_directory)))
        looking = clusters.watch(given, spec.name, lambda m: m in watch.machines(), reporter.put)
        needed.append(asyncio.create_task(looking))
    if given.ends_with_job:
        needed.append(asyncio.create_task(runtime.job_ended(client, spec.name)))
    async with registry.analyzer(client, spec.name, server) as worker:
        health.ready = polling(client, worker)
        await stopping.until_stopped(stop, stopping.first_to_end(needed))
    for task in (*needed, *background):
        task.cancel()
    listening.close()
    server.disconnect_all()
    return 0


if __name__ == "__main__":
    stopping.die_with_parent()
    runtime.run_process(main())
