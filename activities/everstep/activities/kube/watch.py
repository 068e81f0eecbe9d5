"""The watch of one job: its pods and their nodes, from what happens there to alerts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from everstep.activities.kube.cluster import KubernetesCluster
from everstep.activities.kube.connection import Connection, Json
from everstep.activities.kube.follow import Follower
from everstep.activities.kube.nodes import NODES
from everstep.core.errors import EverstepError
from everstep.core.kubernetes.nodes import readiness, remarks_of
from everstep.core.kubernetes.pods import Pod, pod_of
from everstep.core.kubernetes.sense import ClusterSense, Node
from everstep.core.kubernetes_names import pods_of
from everstep.core.model import Alert

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""At least so often, as agents fall silent without a word from the cluster."""

GATHER_S = 0.05
"""A node's death changes many objects at once."""

EVICT_AGAIN_S = 10.0
"""How often an eviction that a budget stands against is tried again."""


class ClusterWatch:
    """Tells of lost pods and nodes, and of what others say of the nodes; evicts what had to wait.

    Args:
        connection: Where to ask.
        namespace: Where the job's pods are.
        job: Name of the job.
        hears: Whether an agent is heard at this moment.
        on_alert: Called with each alert.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        job: str,
        hears: Callable[[str], bool],
        on_alert: Callable[[Alert], None],
    ) -> None:
        self._cluster = KubernetesCluster(connection, namespace)
        self._on_alert = on_alert
        self._sense = ClusterSense(hears)
        self._changed = asyncio.Event()
        changed = self._changed.set
        path = f"/api/v1/namespaces/{namespace}/pods"
        selection = {"labelSelector": pods_of(job)}
        self._pods = Follower(connection, path, selection, _pod, changed)
        self._nodes = Follower(connection, NODES, {}, _node, changed)
        self.synced = asyncio.Event()
        """Set when pods and nodes have been seen for the first time."""

    async def run(self) -> None:
        """Watch for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._look())
            tasks.create_task(self._evict_again())

    async def _look(self) -> None:
        while True:
            try:
                # Python 3.11's `wait_for` loses a cancellation that comes together with a change.
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
                await asyncio.sleep(GATHER_S)
            except TimeoutError:
                pass
            self._changed.clear()
            if not (self._pods.synced and self._nodes.synced):
                continue
            self.synced.set()
            for alert in self._sense.look(self._pods.items, self._nodes.items, time.time()):
                logger.warning("%s", alert.detail)
                self._on_alert(alert)

    async def _evict_again(self) -> None:
        """Carry on evictions that were ordered and had to wait."""
        while True:
            await asyncio.sleep(EVICT_AGAIN_S)
            for pod in [pod for pod in self._pods.items.values() if pod.awaits_eviction]:
                try:
                    answer = await self._cluster.evict_pod(pod.name, pod.uid)
                    logger.info("eviction of %s: %s", pod.name, answer.waiting or "under way")
                except EverstepError as error:
                    logger.warning("eviction of %s: %s", pod.name, error)


def _pod(item: Json) -> tuple[str, Pod]:
    pod = pod_of(item)
    return pod.uid, pod


def _node(item: Json) -> tuple[str, Node]:
    name = item["metadata"]["name"]
    return name, Node(name, readiness(item), tuple(remarks_of(item)))
