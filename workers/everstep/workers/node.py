"""Watches a cluster's node for the jobs that run there: `python -m everstep.workers.node`.

One a node, privileged, since no pod sees the kernel log and the host's own network; what a pod does
see (its GPUs, its memory, its disks) its agent watches, which holds them. A fault is told to each
job that has a machine here, as that machine's agent would.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from everstep.agent.probes.links import Relevance
from everstep.agent.probes.monitor import Monitor, MonitorConfig
from everstep.core.kubernetes_names import LABEL_JOB
from everstep.core.model import Alert
from everstep.workers import runtime, settings, stopping
from everstep.workers.agent import OF_THE_NODE
from everstep.workers.cluster import places
from everstep.workers.cluster.reaching import cluster
from everstep.workers.health import Health
from everstep.workers.reports import Reporter

logger = logging.getLogger(__name__)


class NodeDesk:
    """Hands a node's alerts to the jobs that run there, as soon as it is known which do.

    Args:
        jobs: Names of the jobs that have a machine here; None while nobody could tell.
        put: Hands an alert to a job.
    """

    def __init__(
        self,
        jobs: Callable[[], Collection[str] | None],
        put: Callable[[str, Alert], None],
    ) -> None:
        self._jobs, self._put = jobs, put
        self._waiting: list[Alert] = []

    def take(self, alert: Alert) -> None:
        """Take one alert in."""
        self._waiting.append(alert)
        self.hand_out()

    def hand_out(self) -> None:
        """Hand out what waits, if it can be told to whom; what concerns no job is logged alone."""
        jobs = self._jobs()
        if jobs is None:
            return
        for alert in self._waiting:
            if not jobs:
                logger.info("no job runs here: %s", alert.detail)
            for job in sorted(jobs):
                self._put(job, alert)
        self._waiting.clear()


def job_of(item: dict[str, Any]) -> tuple[str, str]:
    """A pod's uid and its job."""
    metadata = item["metadata"]
    return metadata["uid"], metadata["labels"][LABEL_JOB]


def selection(node: str) -> dict[str, str]:
    """Which pods are on a node and want to hear of it."""
    return {
        "fieldSelector": f"spec.nodeName={node}",
        "labelSelector": f"{LABEL_JOB},{places.LABEL_NODE_SENSES}=true",
    }


def monitor_config(given: settings.NodeSettings) -> MonitorConfig:
    """What is looked at; nobody knows here which variables the jobs set for their networks."""
    return MonitorConfig(
        machine=given.machine,
        relevance=Relevance(addresses=(given.host,)),
        gpus=0,
        accept_programs=given.kernel_log_of_programs,
        parts=OF_THE_NODE,
    )


async def main() -> int:
    """Watch until told to stop."""
    # Only this process and controllers need what talks to the API server.
    from everstep.activities.kube.follow import Follower  # noqa: PLC0415

    stop = stopping.stop_requested()
    given = settings.read(settings.NodeSettings)
    health = Health()
    await health.listen("127.0.0.1", given.health_port)
    client = await stopping.unless_stopped(stop, runtime.connect())
    reporters: dict[str, tuple[Reporter, asyncio.Task[None]]] = {}

    def put(job: str, alert: Alert) -> None:
        if job not in reporters:
            reporter = Reporter(client, job)
            reporters[job] = reporter, asyncio.create_task(reporter.run())
        reporters[job][0].put(alert)

    async with cluster() as connection:
        path = f"/api/v1/namespaces/{given.namespace}/pods"
        pods = Follower(connection, path, selection(given.machine), job_of, lambda: desk.hand_out())
        desk = NodeDesk(lambda: set(pods.items.values()) if pods.synced else None, put)

        async def ready() -> str:
            return "" if pods.synced else "does not know yet which jobs run here"

        health.ready = ready
        watching = [
            asyncio.create_task(pods.run()),
            asyncio.create_task(Monitor(monitor_config(given), desk.take).run()),
        ]
        await stopping.until_stopped(stop, stopping.first_to_end(watching))
    return 0


if __name__ == "__main__":
    stopping.die_with_parent()
    runtime.run_process(main())
