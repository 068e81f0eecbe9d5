"""A job of 1,200 pods on as many nodes: watching it, and eight machines lost at once.

The API server is the stand-in of the tests, in a process of its own: its time is in the figures,
its memory is not. Measured are: from a cold connection to a watch that knows all pods and nodes;
from eight orders to evict, and the claim of eight standbys, to their answers, while the watch
follows; and the memory of this process, which is that of an analyzer and a controller in one.

Run as `python -m benchmarks.kubernetes`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from temporalio.testing import ActivityEnvironment
from tests.fakes.kube.server import kubeconfig

from benchmarks.results import Result, conclude
from everstep.activities.kube.cluster import KubernetesCluster
from everstep.activities.kube.connection import Connection, connected
from everstep.activities.kube.watch import ClusterWatch
from everstep.core.kubernetes_names import LABEL_JOB, LABEL_ROLE
from everstep.core.model import Alert, MachineInfo
from everstep.workflows.effects import ClaimOrder, EvictOrder, SlotsOrder

MACHINES = 1200
STANDBYS = 8
LOST = 8
JOB = "big"
NAMESPACE = "training"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NODES = "/api/v1/nodes"
AT_ONCE = 12


def main() -> int:
    """Make a cluster, measure, print the results."""
    with tempfile.TemporaryDirectory() as folder, _server() as url:
        file = Path(folder) / "kubeconfig"
        file.write_text(json.dumps(kubeconfig(url)))
        return asyncio.run(_measure(str(file)))


@contextmanager
def _server() -> Generator[str]:
    """The stand-in's address."""
    command = [sys.executable, "-m", "tests.fakes.kube"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None  # noqa: S101 - asked for
    assert process.stdout is not None  # noqa: S101
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()


async def _measure(file: str) -> int:
    began_s = time.perf_counter()
    async with connected(file) as api:
        machines = await _make(api)
    print(f"{MACHINES + STANDBYS} nodes and pods made in {time.perf_counter() - began_s:.1f} s")
    alerts: list[Alert] = []
    began_s = time.perf_counter()
    async with connected(file) as api:
        watch = ClusterWatch(api, NAMESPACE, JOB, lambda _: True, alerts.append)
        watching = asyncio.create_task(watch.run())
        await watch.synced.wait()
        start_s = time.perf_counter() - began_s
        cluster = KubernetesCluster(api, NAMESPACE)
        slots = SlotsOrder(JOB, tuple(info.machine for info in machines[:MACHINES]))
        began_s = time.perf_counter()
        await ActivityEnvironment().run(cluster.give_slots, slots)
        print(f"{MACHINES} slots shown in {time.perf_counter() - began_s:.1f} s")
        evict_s = await _lose(cluster, machines)
        watching.cancel()
        await asyncio.wait([watching])
    assert alerts == [], alerts[:3]  # noqa: S101 - our own evictions are no news
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return conclude(
        [
            Result("kubernetes_watch_start", start_s, "s", "<=", 5.0),
            Result("kubernetes_evict_8_claim_8", evict_s, "s", "<=", 10.0),
            Result("kubernetes_memory", peak_mib, "MiB", "<=", 500.0),
        ]
    )


async def _lose(cluster: KubernetesCluster, machines: list[MachineInfo]) -> float:
    """Seconds in which machines are evicted, as a recovery has it done, and standbys claimed."""
    began_s = time.perf_counter()
    orders = [EvictOrder(info, 1, "lost", JOB) for info in machines[:LOST]]
    answers = await asyncio.gather(
        *(ActivityEnvironment().run(cluster.evict, order) for order in orders)
    )
    claims = tuple(enumerate(machines[MACHINES : MACHINES + LOST]))
    report = await ActivityEnvironment().run(cluster.claim, ClaimOrder(JOB, 1, claims))
    took_s = time.perf_counter() - began_s
    assert not report.refused  # noqa: S101 - nothing speaks against them
    assert all(answer is not None and not answer.waiting for answer in answers)  # noqa: S101
    return took_s


async def _make(api: Connection) -> list[MachineInfo]:
    """The cluster's objects, as a scheduler and kubelets leave them; those that train first."""
    await api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    return await _all(_make_machine(api, number) for number in range(MACHINES + STANDBYS))


async def _make_machine(api: Connection, number: int) -> MachineInfo:
    node, pod = f"node-{number:04}", f"everstep-{JOB}-{number:04}"
    ready = {"type": "Ready", "status": "True"}
    await api.post(NODES, {"metadata": {"name": node, "labels": {"rack": f"r{number // 16}"}}})
    await api.patch(f"{NODES}/{node}/status", {"status": {"conditions": [ready]}})
    labels = {LABEL_JOB: JOB, LABEL_ROLE: "training" if number < MACHINES else "standby"}
    spec = {"nodeName": node, "containers": [{"name": "agent", "image": "none"}]}
    made = await api.post(PODS, {"metadata": {"name": pod, "labels": labels}, "spec": spec})
    status = {"phase": "Running", "conditions": [ready]}
    await api.patch(f"{PODS}/{pod}/status", {"status": status})
    return MachineInfo(node, "10.0.0.1", 1, 2, 3, 0.0, pod, made["metadata"]["uid"])


async def _all(work: Iterable[Awaitable[MachineInfo]]) -> list[MachineInfo]:
    lane = asyncio.Semaphore(AT_ONCE)

    async def one(item: Awaitable[MachineInfo]) -> MachineInfo:
        async with lane:
            return await item

    return list(await asyncio.gather(*(one(item) for item in work)))


if __name__ == "__main__":
    sys.exit(main())
