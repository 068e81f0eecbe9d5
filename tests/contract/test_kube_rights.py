"""What our processes may do in a cluster is what they do: nothing is missing, nothing unused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment
from tests.fakes.kube.faults import Fault, Kind
from tests.fakes.kube.where import ANALYZER, CONTROLLER, NODES, Where, anywhere, rights_of

from everstep.activities.kube import watch as kube_watch
from everstep.activities.kube.cluster import KubernetesCluster
from everstep.activities.kube.connection import Json, connected
from everstep.activities.kube.follow import Follower
from everstep.activities.kube.watch import ClusterWatch
from everstep.core.model import Alert, MachineInfo
from everstep.workers.node import job_of, selection
from everstep.workflows.effects import (
    ClaimOrder,
    EvictOrder,
    MachineRequest,
    MachinesQuery,
    ReleaseOrder,
    SlotsOrder,
)

JOB = "gpt"
NODE = "everstep-node"
PATIENCE_S = 20.0


@pytest.fixture
async def where(tmp_path: Path) -> AsyncIterator[Where]:
    async with anywhere(tmp_path) as where:
        if where.server is None:
            pytest.skip("a real server does not tell of calls")
        yield where


async def machine(where: Where, number: int) -> MachineInfo:
    node = await where.make_node(f"n{number}")
    pod = await where.make_pod(
        f"p{number}",
        node,
        running=True,
        everstep_dev__job=JOB,
        everstep_dev__role="training",
    )
    return MachineInfo(node, "h", 1, 2, 3, time.time(), f"p{number}", pod["metadata"]["uid"])


def used(where: Where, user: str) -> frozenset[object]:
    assert where.server is not None
    return frozenset(call.right for call in where.server.calls if call.user == user)


async def test_a_controller_uses_its_rights(where: Where) -> None:
    one, two = await machine(where, 0), await machine(where, 1)
    sets = f"/apis/apps/v1/namespaces/{where.namespace}/statefulsets"
    spec: Json = {"replicas": 0, "selector": {}, "template": {}}
    name = f"everstep-{JOB}-standby"
    await where.api.post(sets, {"metadata": {"name": name}, "spec": spec})
    call = ActivityEnvironment().run
    async with connected(str(where.of_user(CONTROLLER))) as api:
        cluster = KubernetesCluster(api, where.namespace)
        await call(cluster.list_machines, MachinesQuery(JOB, "rack"))
        await call(cluster.give_slots, SlotsOrder(JOB, (one.machine,)))
        await call(cluster.claim, ClaimOrder(JOB, 1, ((1, two),)))
        await call(cluster.quarantine, EvictOrder(two, 1, "a test", JOB))
        await call(cluster.release, ReleaseOrder(JOB, two.machine))
        await call(cluster.evict, EvictOrder(one, 1, "a test", JOB))
        silent = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        await where.api.patch(f"{NODES}/{one.machine}/status", silent)
        await call(cluster.request_machines, MachineRequest(JOB, "run", 1, 1, 2, "a test"))
    assert used(where, CONTROLLER) == rights_of(CONTROLLER)


async def test_an_analyzer_uses_its_rights_and_carries_on_an_eviction(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_watch, "EVICT_AGAIN_S", 0.2)
    info = await machine(where, 0)
    pod = f"{where.pods}/{info.pod}"
    assert where.server is not None
    # Rights are used by unlucky turns, too: whatever is asked for after one has to be granted.
    for code in (409, 429, 503):
        evicts = Fault(Kind.ANSWER, lambda call: call.subresource == "eviction", code=code)
        where.server.faults.order(evicts)
    alerts: list[Alert] = []
    async with connected(str(where.of_user(ANALYZER))) as api:
        watch = ClusterWatch(api, where.namespace, JOB, lambda _: True, alerts.append)
        task = asyncio.create_task(watch.run())
        await asyncio.wait_for(watch.synced.wait(), PATIENCE_S)
        labels = {"labels": {"everstep.dev/role": "evicted"}}
        await where.api.patch(pod, {"metadata": labels})
        deadline_s = time.monotonic() + PATIENCE_S
        while "deletionTimestamp" not in (await where.api.get(pod))["metadata"]:
            assert time.monotonic() < deadline_s, "never evicted"
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
    assert alerts == []
    assert used(where, ANALYZER) == rights_of(ANALYZER)


async def test_what_watches_a_node_uses_its_rights(where: Where) -> None:
    info = await machine(where, 0)
    labels = {"labels": {"everstep.dev/node-senses": "true"}}
    await where.api.patch(f"{where.pods}/{info.pod}", {"metadata": labels})
    async with connected(str(where.of_user(NODE))) as api:
        pods = Follower(api, where.pods, selection(info.machine), job_of, lambda: None)
        task = asyncio.create_task(pods.run())
        await _until(lambda: used(where, NODE) == rights_of(NODE), "list, then watch")
        assert list(pods.items.values()) == [JOB]
        task.cancel()
        await asyncio.wait([task])


async def test_what_others_do_is_told(where: Where) -> None:
    info = await machine(where, 0)
    await machine(where, 1)
    alerts: list[Alert] = []
    async with connected(str(where.of_user(ANALYZER))) as api:
        watch = ClusterWatch(api, where.namespace, JOB, lambda _: True, alerts.append)
        task = asyncio.create_task(watch.run())
        await asyncio.wait_for(watch.synced.wait(), PATIENCE_S)
        labels = {"labels": {"dgxc.nvidia.com/nvsentinel-state": "quarantined"}}
        await where.api.patch(f"/api/v1/nodes/{info.machine}", {"metadata": labels})
        await _until(lambda: len(alerts) == 1, "NVSentinel's word")
        assert (alerts[0].machine, alerts[0].confident) == (info.machine, True)
        await where.api.delete(f"{where.pods}/p1", {})
        await _until(lambda: len(alerts) == 2, "the deletion")
        assert alerts[1].symptom == "agent_lost"
        assert alerts[1].detail.startswith("pod p1 on")
        task.cancel()
        await asyncio.wait([task])


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never: {what}"
        await asyncio.sleep(0.02)
