"""Both clusters keep the promises of the cluster port: processes of a host, and pods.

With KUBECONFIG set, the pods are those of the server that it names.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from temporalio.testing import ActivityEnvironment
from tests.fakes.kube.where import Where, anywhere

from everstep.activities.kube.cluster import KubernetesCluster
from everstep.activities.local_cluster import LocalCluster
from everstep.core.model import MachineInfo
from everstep.workflows.effects import (
    ClaimOrder,
    Evicted,
    EvictOrder,
    MachinesQuery,
    ReleaseOrder,
    SeenMachine,
    SlotsOrder,
)
from everstep.workflows.ports import ClusterPort

T = TypeVar("T")
NAMES = ("m0", "m1", "m2")
JOB = "gpt"
PATIENCE_S = 20.0


class Cluster(ABC):
    """Three machines of a job, m0 to m2, and the port to them."""

    port: ClusterPort
    machines: dict[str, MachineInfo]

    @abstractmethod
    async def is_gone(self, name: str) -> bool: ...

    @abstractmethod
    async def replace(self, name: str) -> MachineInfo:
        """Another agent on the same machine."""

    async def call(self, method: Callable[..., Awaitable[T]], *order: object) -> T:
        # Not in an activity there would be nobody to heartbeat to.
        return await ActivityEnvironment().run(method, *order)

    async def seen(self) -> dict[str, SeenMachine]:
        listed = await self.call(self.port.list_machines, MachinesQuery(JOB))
        return {self.short(machine.machine): machine for machine in listed}

    def short(self, machine: str) -> str:
        return next(n for n, info in self.machines.items() if info.machine == machine)

    def order(self, name: str, incident: int = 1) -> EvictOrder:
        return EvictOrder(self.machines[name], incident, "a test", JOB)

    def claims(self, *names: str) -> ClaimOrder:
        claims = tuple((slot, self.machines[name]) for slot, name in enumerate(names))
        return ClaimOrder(JOB, 1, claims)

    def slots(self, *names: str) -> SlotsOrder:
        return SlotsOrder(JOB, tuple(self.machines[name].machine for name in names))

    def release(self, name: str, job: str = JOB) -> ReleaseOrder:
        return ReleaseOrder(job, self.machines[name].machine)


class Processes(Cluster):
    """Processes that look like agents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "requests").mkdir()
        self.port = LocalCluster(folder / "evictions.jsonl", folder / "requests")
        self.running: list[subprocess.Popen[bytes]] = []
        self.machines = {name: self.start(name) for name in NAMES}

    def start(self, name: str) -> MachineInfo:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)", "everstep.workers.agent", name],
            env={**os.environ, "EVERSTEP_RUN_DIRECTORY": str(self.folder.absolute())},
        )
        self.running.append(process)
        return MachineInfo(name, "127.0.0.1", 1, 2, process.pid, time.time())

    async def is_gone(self, name: str) -> bool:
        pid = self.machines[name].agent_pid
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"

    async def replace(self, name: str) -> MachineInfo:
        old = next(p for p in self.running if p.pid == self.machines[name].agent_pid)
        old.kill()
        await asyncio.to_thread(old.wait)
        return self.start(name)

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


class Pods(Cluster):
    """Pods on nodes of their own."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.port = KubernetesCluster(where.api, where.namespace)
        self.machines = {}

    async def start(self, name: str, pod: str, node: str = "") -> MachineInfo:
        node = node or await self.where.make_node(name)
        made = await self.where.make_pod(
            pod, node, running=True, everstep_dev__job=JOB, everstep_dev__role="standby"
        )
        uid = made["metadata"]["uid"]
        return MachineInfo(node, "127.0.0.1", 1, 2, 3, time.time(), pod, uid)

    async def is_gone(self, name: str) -> bool:
        pods = (await self.where.api.get(self.where.pods))["items"]
        here = [pod for pod in pods if pod["metadata"]["uid"] == self.machines[name].pod_uid]
        return all("deletionTimestamp" in pod["metadata"] for pod in here)

    async def replace(self, name: str) -> MachineInfo:
        info = self.machines[name]
        await self.where.api.delete(f"{self.where.pods}/{info.pod}", {"gracePeriodSeconds": 0})
        return await self.start(name, info.pod, info.machine)


@pytest.fixture(params=["local", "kubernetes"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    if request.param == "local":
        processes = Processes(tmp_path)
        yield processes
        processes.close()
        return
    async with anywhere(tmp_path) as where:
        pods = Pods(where)
        for name in NAMES:
            pods.machines[name] = await pods.start(name, f"pod-{name}")
        yield pods


async def test_machines_are_listed(cluster: Cluster) -> None:
    async def all_there() -> bool:
        return set(await cluster.seen()) == {*NAMES}

    deadline_s = time.monotonic() + PATIENCE_S
    while not await all_there():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    assert all(machine.slot is None for machine in (await cluster.seen()).values())
    assert not any(machine.quarantined for machine in (await cluster.seen()).values())


async def test_slots_are_shown_and_taken_away(cluster: Cluster) -> None:
    await cluster.call(cluster.port.give_slots, cluster.slots("m1", "m0"))
    assert {n: m.slot for n, m in (await cluster.seen()).items()} == {"m0": 1, "m1": 0, "m2": None}
    for _ in range(2):
        await cluster.call(cluster.port.give_slots, cluster.slots("m1", "m2"))
    assert {n: m.slot for n, m in (await cluster.seen()).items()} == {"m0": None, "m1": 0, "m2": 1}


async def test_standbys_are_claimed(cluster: Cluster) -> None:
    for _ in range(2):
        report = await cluster.call(cluster.port.claim, cluster.claims("m2", "m0"))
        assert report.refused == ()
    assert {n: m.slot for n, m in (await cluster.seen()).items()} == {"m0": 1, "m1": None, "m2": 0}


async def test_what_is_in_quarantine_is_refused_until_it_is_released(cluster: Cluster) -> None:
    await cluster.call(cluster.port.give_slots, cluster.slots("m0", "m1"))
    for _ in range(2):
        await cluster.call(cluster.port.quarantine, cluster.order("m1"))
    seen = (await cluster.seen())["m1"]
    assert (seen.quarantined, seen.slot) == (True, None)
    assert not await cluster.is_gone("m1")
    report = await cluster.call(cluster.port.claim, cluster.claims("m1", "m2"))
    ((machine, why),) = report.refused
    assert cluster.short(machine) == "m1"
    assert "in quarantine" in why
    assert (await cluster.seen())["m2"].slot == 1
    for _ in range(2):
        await cluster.call(cluster.port.release, cluster.release("m1"))
    assert not (await cluster.seen())["m1"].quarantined
    assert (await cluster.call(cluster.port.claim, cluster.claims("m1"))).refused == ()


async def test_what_was_never_taken_is_released_to_no_effect(cluster: Cluster) -> None:
    await cluster.call(cluster.port.release, cluster.release("m0"))
    assert not (await cluster.seen())["m0"].quarantined


async def test_what_is_evicted_is_gone_and_in_quarantine(cluster: Cluster) -> None:
    for _ in range(2):
        answer = await cluster.call(cluster.port.evict, cluster.order("m1"))
        assert answer == Evicted()
    assert await cluster.is_gone("m1")
    assert "m1" not in await cluster.seen()
    report = await cluster.call(cluster.port.claim, cluster.claims("m1"))
    assert len(report.refused) == 1


async def test_a_later_agent_of_an_evicted_machine_lives_on(cluster: Cluster) -> None:
    old = cluster.order("m1")
    cluster.machines["m1"] = await cluster.replace("m1")
    assert await cluster.call(cluster.port.evict, old) == Evicted()
    assert not await cluster.is_gone("m1")


async def test_a_standby_whose_agent_is_another_by_now_is_refused(cluster: Cluster) -> None:
    old = cluster.claims("m1")
    cluster.machines["m1"] = await cluster.replace("m1")
    assert len((await cluster.call(cluster.port.claim, old)).refused) == 1


async def test_a_machine_that_vanished_is_evicted_and_released_all_the_same(
    cluster: Cluster,
) -> None:
    gone = replace(cluster.machines["m1"], machine="nowhere", pod="nothing", agent_pid=2**22 - 1)
    order = EvictOrder(gone, 1, "a test", JOB)
    assert await cluster.call(cluster.port.evict, order) == Evicted()
    await cluster.call(cluster.port.release, ReleaseOrder(JOB, "nowhere"))
