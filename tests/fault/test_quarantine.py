"""Nodes that are taken out and given back, while controllers die and others write them too."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from tests.fakes.kube.faults import Call, Fault, Kind
from tests.fakes.kube.where import NODES, Where, anywhere
from tests.fault.marking import carry_out, dies_at

from everstep.activities.kube.cluster import KubernetesCluster
from everstep.activities.kube.connection import ChangedError, Json
from everstep.core.faultpoint import CLUSTER_POINTS, ClusterPoint
from everstep.core.kubernetes.objects import annotations_of
from everstep.core.model import MachineInfo
from everstep.workflows.effects import ClaimOrder, Evicted, EvictOrder, MachineRequest, ReleaseOrder

JOB = "gpt"
PATIENCE_S = 60.0
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "x", "effect": "NoSchedule"}
NVSENTINEL = "dgxc.nvidia.com/nvsentinel-state"


@dataclass
class Node:
    """One node with a pod of the job, and a taint that belongs to others."""

    where: Where
    info: MachineInfo
    cluster: KubernetesCluster

    @property
    def evict(self) -> EvictOrder:
        return EvictOrder(self.info, 3, "it was lost", JOB)

    @property
    def release(self) -> ReleaseOrder:
        return ReleaseOrder(JOB, self.info.machine)

    @property
    def path(self) -> str:
        return f"{NODES}/{self.info.machine}"

    async def carry_out(self, order: EvictOrder | ReleaseOrder) -> None:
        await carry_out(str(self.where.kubeconfig), self.where.namespace, order)

    async def call(self, method: Any, order: Any) -> Any:
        return await ActivityEnvironment().run(method, order)

    async def look(self) -> dict[str, Any]:
        """All that Everstep may change on the node."""
        node = await self.where.api.get(self.path)
        conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
        marks = json.loads(annotations_of(node).get("everstep.dev/quarantined-by", "[]"))
        return {
            "cordoned": bool(node["spec"].get("unschedulable")),
            "taints": sorted(taint["key"] for taint in node["spec"].get("taints", [])),
            "marks": [(mark["job"], mark["incident"], mark["cordoned"]) for mark in marks],
            "condition": conditions.get("EverstepQuarantined", "False"),
        }

    async def pod(self) -> Json:
        return await self.where.api.get(f"{self.where.pods}/{self.info.pod}")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with anywhere(tmp_path) as where:
        name = await where.make_node("n0")
        await where.api.patch(f"{NODES}/{name}", {"spec": {"taints": [GPU_TAINT]}})
        pod = await where.make_pod(
            "pod-0",
            name,
            running=True,
            everstep_dev__job=JOB,
            everstep_dev__role="training",
            everstep_dev__slot="0",
        )
        uid = pod["metadata"]["uid"]
        info = MachineInfo(name, "127.0.0.1", 1, 2, 3, time.time(), "pod-0", uid)
        yield Node(where, info, KubernetesCluster(where.api, where.namespace))


def out(cordoned_by_us: bool) -> dict[str, Any]:
    return {
        "cordoned": True,
        "taints": ["everstep.dev/quarantine", "nvidia.com/gpu"],
        "marks": [(JOB, 3, cordoned_by_us)],
        "condition": "True",
    }


def back(cordoned: bool) -> dict[str, Any]:
    return {
        "cordoned": cordoned,
        "taints": ["nvidia.com/gpu"],
        "marks": [],
        "condition": "False",
    }


async def dies(node: Node, point: ClusterPoint, order: EvictOrder | ReleaseOrder) -> None:
    """Let another process carry the order out until SIGKILL at the point."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.fault.marking"])
    arguments = (point, str(node.where.kubeconfig), node.where.namespace, order)
    process = context.Process(target=dies_at, args=arguments)
    process.start()
    await asyncio.to_thread(process.join, PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL, f"{point} was never reached"


@pytest.mark.parametrize("theirs", [False, True], ids=["open", "cordoned by others"])
@pytest.mark.parametrize("point", CLUSTER_POINTS)
async def test_a_controller_that_dies_is_carried_on(
    node: Node, point: ClusterPoint, theirs: bool
) -> None:
    if theirs:
        await node.where.api.patch(node.path, {"spec": {"unschedulable": True}})
    releasing = point.startswith("release")
    if releasing:
        await node.carry_out(node.evict)
    order = node.release if releasing else node.evict
    await dies(node, point, order)
    seen = await node.look()
    # A condition, a taint or a cordon of ours never stands without the annotation that tells whose.
    if not seen["marks"]:
        assert seen == back(theirs)
    await node.carry_out(order)
    assert await node.look() == (back(theirs) if releasing else out(not theirs))
    if not releasing:
        pod = await node.pod()
        assert pod["metadata"]["labels"]["everstep.dev/role"] == "evicted"
        assert "everstep.dev/slot" not in pod["metadata"]["labels"]
        assert pod["metadata"]["annotations"] == {"everstep.dev/incident": "3"}
        assert "deletionTimestamp" in pod["metadata"]
        await node.carry_out(node.release)
        assert await node.look() == back(theirs)


async def test_marks_of_others_that_come_in_between_are_kept(node: Node) -> None:
    """Ten writers at once: each reads, decides and writes again if it was overtaken."""

    async def taint(number: int) -> None:
        for _ in range(50):
            seen = await node.where.api.get(node.path)
            taints = [*seen["spec"]["taints"], {**GPU_TAINT, "key": f"other/{number}"}]
            version = {"resourceVersion": seen["metadata"]["resourceVersion"]}
            try:
                await node.where.api.patch(
                    node.path, {"metadata": version, "spec": {"taints": taints}}
                )
                return
            except ChangedError:
                continue

    await asyncio.gather(*(taint(i) for i in range(9)), node.call(node.cluster.evict, node.evict))
    seen = await node.look()
    assert seen["taints"] == [
        "everstep.dev/quarantine", "nvidia.com/gpu", *(f"other/{i}" for i in range(9))
    ]  # fmt: skip
    assert seen["condition"] == "True"


async def test_who_marked_the_node_meanwhile_keeps_it_cordoned(node: Node) -> None:
    await node.carry_out(node.evict)
    await node.where.api.patch(node.path, {"metadata": {"labels": {NVSENTINEL: "quarantined"}}})
    await node.carry_out(node.release)
    assert await node.look() == back(cordoned=True)


async def test_another_jobs_quarantine_is_not_ours_to_end(node: Node) -> None:
    await node.carry_out(node.evict)
    await node.call(node.cluster.release, ReleaseOrder("moe", node.info.machine))
    assert await node.look() == out(cordoned_by_us=True)


@pytest.mark.parametrize("drained", [False, True])
async def test_a_node_is_not_blamed_for_who_deletes_its_pod(node: Node, drained: bool) -> None:
    """Unless there is more: then it is taken out as if the pod were there."""
    if drained:
        await node.where.api.patch(node.path, {"spec": {"unschedulable": True}})
    await node.where.api.delete(f"{node.where.pods}/pod-0", {})
    for _ in range(2):
        assert await node.call(node.cluster.evict, node.evict) == Evicted()
    assert await node.look() == (out(cordoned_by_us=False) if drained else back(cordoned=False))
    await node.where.api.delete(f"{node.where.pods}/pod-0", {"gracePeriodSeconds": 0})
    other = await node.where.make_pod("pod-0", node.info.machine, running=True)
    assert await node.call(node.cluster.evict, node.evict) == Evicted()
    assert (await node.pod())["metadata"] == other["metadata"]


async def test_a_standby_on_a_node_that_others_marked_is_refused(node: Node) -> None:
    await node.where.api.patch(node.path, {"metadata": {"labels": {NVSENTINEL: "draining"}}})
    report = await node.call(node.cluster.claim, ClaimOrder(JOB, 1, ((0, node.info),)))
    ((machine, why),) = report.refused
    assert machine == node.info.machine
    assert why == f"node {machine}: NVSentinel says draining"


async def test_a_budget_is_an_answer_and_the_intent_stays(node: Node) -> None:
    selector = {"matchLabels": {"everstep.dev/job": JOB}}
    spec = {"minAvailable": 1, "selector": selector}
    await node.where.api.post(node.where.budgets, {"metadata": {"name": "b"}, "spec": spec})
    status = {"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1}
    path = f"{node.where.budgets}/b/status"
    await node.where.api.patch(path, {"status": {**status, "disruptionsAllowed": 0}})
    answer = await node.call(node.cluster.evict, node.evict)
    assert answer.waiting.startswith("pod pod-0: The disruption budget b needs 1 healthy pods")
    assert await node.look() == out(cordoned_by_us=True)
    pod = await node.pod()
    assert pod["metadata"]["labels"]["everstep.dev/role"] == "evicted"
    assert "deletionTimestamp" not in pod["metadata"]
    await node.where.api.patch(path, {"status": {"disruptionsAllowed": 1}})
    assert await node.call(node.cluster.evict, node.evict) == Evicted()
    assert "deletionTimestamp" in (await node.pod())["metadata"]


async def test_a_dead_nodes_pod_is_not_waited_for(node: Node) -> None:
    """It hangs until the cluster says so; asked twice, the answer is the same."""
    ready = {"type": "Ready", "status": "Unknown"}
    await node.where.api.patch(
        f"{node.path}/status",
        {"status": {"conditions": [ready]}},
    )
    for _ in range(2):
        assert await node.call(node.cluster.evict, node.evict) == Evicted()
    assert "deletionTimestamp" in (await node.pod())["metadata"]


@pytest.mark.parametrize("victim", ["patch nodes", "patch nodes/status"])
async def test_a_node_that_vanishes_meanwhile_keeps_its_pod_from_nothing(
    node: Node, victim: str
) -> None:
    if node.where.server is None:
        pytest.skip("a real server's nodes vanish when they like")
    verb, _, where = victim.partition(" ")
    resource, _, subresource = where.partition("/")

    def wanted(call: Call) -> bool:
        return (call.verb, call.resource, call.subresource) == (verb, resource, subresource)

    node.where.server.faults.order(Fault(Kind.ANSWER, wanted, code=404))
    assert await node.call(node.cluster.evict, node.evict) == Evicted()
    assert "deletionTimestamp" in (await node.pod())["metadata"]


@pytest.mark.parametrize("kind", [Kind.ANSWER, Kind.CUT_BEFORE, Kind.CUT_AFTER])
@pytest.mark.parametrize(
    "victim", ["patch nodes", "patch nodes/status", "patch pods", "create pods/eviction"]
)
async def test_an_answer_that_does_not_come_is_asked_for_again(
    node: Node, kind: Kind, victim: str
) -> None:
    if node.where.server is None:
        pytest.skip("a real server does not fail at will")

    def wanted(call: Call) -> bool:
        verb, _, where = victim.partition(" ")
        resource, _, subresource = where.partition("/")
        return (call.verb, call.resource, call.subresource) == (verb, resource, subresource)

    node.where.server.faults.order(Fault(kind, wanted))
    with pytest.raises(ApplicationError) as caught:
        await node.call(node.cluster.evict, node.evict)
    assert not caught.value.non_retryable
    assert await node.call(node.cluster.evict, node.evict) == Evicted()
    assert await node.look() == out(cordoned_by_us=True)


async def test_what_is_forbidden_is_not_tried_again(node: Node) -> None:
    if node.where.server is None:
        pytest.skip("a real server does not fail at will")
    node.where.server.faults.order(Fault(Kind.ANSWER, lambda call: call.verb == "patch", code=403))
    with pytest.raises(ApplicationError) as caught:
        await node.call(node.cluster.evict, node.evict)
    assert caught.value.non_retryable


async def test_the_set_of_standbys_grows_by_what_hangs(node: Node) -> None:
    where = node.where
    sets = f"/apis/apps/v1/namespaces/{where.namespace}/statefulsets"
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "agent", "image": "none"}]},
    }
    spec = {
        "replicas": 1,
        "serviceName": "x",
        "selector": {"matchLabels": {"app": "x"}},
        "template": template,
    }
    request = MachineRequest(JOB, "run", 1, count=1, total=2, reason="one is lost")
    with pytest.raises(ApplicationError, match="1 of 2 pods are there"):
        await node.call(node.cluster.request_machines, request)
    await where.api.post(sets, {"metadata": {"name": f"everstep-{JOB}-standby"}, "spec": spec})
    name = await where.make_node("n1")
    await where.make_pod(
        f"everstep-{JOB}-standby-0",
        name,
        running=True,
        everstep_dev__job=JOB,
        everstep_dev__role="standby",
    )

    async def size() -> int:
        found = await where.api.get(f"{sets}/everstep-{JOB}-standby/scale")
        return int(found["spec"]["replicas"])

    await node.call(node.cluster.request_machines, request)
    assert await size() == 1, "all are there"
    await node.call(node.cluster.evict, node.evict)
    await node.call(node.cluster.request_machines, request)
    assert await size() == 1, "its set brings another in place of one that was deleted"
    silent = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    await where.api.patch(f"{node.path}/status", silent)
    for _ in range(2):
        await node.call(node.cluster.request_machines, request)
    assert await size() == 2, "it hangs"
    await where.api.patch(f"{NODES}/{name}/status", silent)
    await where.api.delete(f"{where.pods}/everstep-{JOB}-standby-0", {})
    more = MachineRequest(JOB, "run", 2, count=2, total=2, reason="so is the standby")
    await node.call(node.cluster.request_machines, more)
    assert await size() == 3, "both hang, one of them in the set"
    await where.api.delete(f"{sets}/everstep-{JOB}-standby", {})


async def test_what_a_jobset_brings_in_place_of_what_hangs_is_enough(node: Node) -> None:
    """A Job brings another pod as soon as one is being deleted, on a dead node too."""
    request = MachineRequest(JOB, "run", 1, count=1, total=1, reason="one is lost")
    await node.call(node.cluster.evict, node.evict)
    silent = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    await node.where.api.patch(f"{node.path}/status", silent)
    with pytest.raises(ApplicationError, match="0 of 1 pods are there") as caught:
        await node.call(node.cluster.request_machines, request)
    assert not caught.value.non_retryable
    await node.where.make_pod("pod-1", everstep_dev__job=JOB, everstep_dev__role="training")
    await node.call(node.cluster.request_machines, request)


async def test_a_pod_that_is_being_replaced_at_this_moment_makes_no_set_larger(node: Node) -> None:
    where, sets = node.where, f"/apis/apps/v1/namespaces/{node.where.namespace}/statefulsets"
    # Nobody makes their pods: as if all of them were between an old pod and a new one.
    for role, size in {"training": 2, "standby": 1}.items():
        labels = {"app": role}
        spec = {
            "replicas": size,
            "serviceName": "x",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "agent", "image": "none"}]},
            },
        }
        await where.api.post(sets, {"metadata": {"name": f"everstep-{JOB}-{role}"}, "spec": spec})
    request = MachineRequest(JOB, "run", 1, count=1, total=3, reason="one is lost")
    await node.call(node.cluster.request_machines, request)
    found = await where.api.get(f"{sets}/everstep-{JOB}-standby/scale")
    assert found["spec"]["replicas"] == 1
    for role in ("training", "standby"):
        await where.api.delete(f"{sets}/everstep-{JOB}-{role}", {})
