"""A controller that marks a node and dies at a point of that: the target of a forked process."""

from __future__ import annotations

import asyncio
import os
import signal

from temporalio.testing import ActivityEnvironment

from everstep.activities.kube.cluster import KubernetesCluster
from everstep.activities.kube.connection import connected
from everstep.core import faultpoint
from everstep.core.faultpoint import ClusterPoint
from everstep.workflows.effects import EvictOrder, ReleaseOrder

Order = EvictOrder | ReleaseOrder


def dies_at(point: ClusterPoint, kubeconfig: str, namespace: str, order: Order) -> None:
    """Carry the order out, up to the point; returns if it is never reached."""

    def reached(now: faultpoint.Point) -> None:
        if now == point:
            os.kill(os.getpid(), signal.SIGKILL)

    faultpoint.hooks.append(reached)
    asyncio.run(carry_out(kubeconfig, namespace, order))


async def carry_out(kubeconfig: str, namespace: str, order: Order) -> None:
    """What a controller does with an order."""
    async with connected(kubeconfig) as api:
        cluster = KubernetesCluster(api, namespace)
        if isinstance(order, EvictOrder):
            await ActivityEnvironment().run(cluster.evict, order)
        else:
            await ActivityEnvironment().run(cluster.release, order)
