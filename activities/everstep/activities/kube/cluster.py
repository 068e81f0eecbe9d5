"""The cluster port for machines that are pods."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from temporalio import activity

from everstep.activities.failure import as_failures
from everstep.activities.heartbeat import beating
from everstep.activities.kube.connection import (
    BudgetError,
    ChangedError,
    Connection,
    InvalidError,
    Json,
    NotThereError,
)
from everstep.activities.kube.nodes import NODES, Nodes
from everstep.core import faultpoint
from everstep.core.errors import PermanentError, TransientError
from everstep.core.kubernetes.nodes import is_quarantined, readiness, remarks_of
from everstep.core.kubernetes.objects import labels_of
from everstep.core.kubernetes.pods import Pod, pod_of, text_of
from everstep.core.kubernetes.quarantine import Mark, marks_of
from everstep.core.kubernetes_names import (
    ANNOTATION_INCIDENT,
    LABEL_ROLE,
    LABEL_SLOT,
    ROLE_EVICTED,
    ROLE_STANDBY,
    ROLE_TRAINING,
    pods_of,
    standby_set,
    training_set,
)
from everstep.core.model import MachineInfo
from everstep.core.vocabulary import Verdict
from everstep.workflows.effects import (
    ClaimOrder,
    ClaimReport,
    Evicted,
    EvictOrder,
    MachineRequest,
    MachinesQuery,
    ReleaseOrder,
    SeenMachine,
    SlotsOrder,
)
from everstep.workflows.ports import ClusterPort

AT_ONCE = 8
"""Requests that one order keeps under way; a job may have thousands of pods."""


class KubernetesCluster(ClusterPort):
    """Machines are pods with an agent each, named for their nodes; standbys are running pods.

    Args:
        connection: Where to ask.
        namespace: Where the pods of all jobs are that this controller serves.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._api = connection
        self._nodes = Nodes(connection)
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"

    @activity.defn(name="cluster.list_machines")
    async def list_machines(self, query: MachinesQuery) -> tuple[SeenMachine, ...]:
        """See which machines the job has.

        Effect: none.
        Idempotent by: having none.
        Heartbeats: yes.
        Gives up when: it is not allowed to.
        """
        with as_failures():
            async with beating():
                return await self._list_machines(query)

    @activity.defn(name="cluster.claim")
    async def claim(self, order: ClaimOrder) -> ClaimReport:
        """Give slots to standbys that nothing speaks against.

        Effect: labels of their pods.
        Idempotent by: labels that are there already change nothing.
        Heartbeats: no.
        Gives up when: it is not allowed to.
        """
        with as_failures():
            whys = await asyncio.gather(
                *(self._claim(order.incident, slot, info) for slot, info in order.claims)
            )
            machines = [info.machine for _, info in order.claims]
            refused = [(name, why) for name, why in zip(machines, whys, strict=True) if why]
            return ClaimReport(tuple(refused))

    @activity.defn(name="cluster.give_slots")
    async def give_slots(self, order: SlotsOrder) -> None:
        """Show by labels who holds which slot.

        Effect: labels of those of the job's pods that say something else.
        Idempotent by: labels that are there already change nothing.
        Heartbeats: yes.
        Gives up when: it is not allowed to.
        """
        with as_failures():
            async with beating():
                await self._give_slots(order)

    @activity.defn(name="cluster.quarantine")
    async def quarantine(self, order: EvictOrder) -> None:
        """Let nothing new begin on the machine.

        Effect: its node is cordoned, has taint, annotation and condition; its pod holds no slot.
            A node that pods share stays open: it is no machine.
        Idempotent by: job and incident in the annotation.
        Heartbeats: yes.
        Gives up when: it is not allowed to; a node that is gone needs no quarantine.
        """
        with as_failures():
            async with beating():
                await self._nodes.quarantine(order.machine.machine, _mark(order))
                await self._show(order.machine, ROLE_STANDBY, None, order.incident)

    @activity.defn(name="cluster.release")
    async def release(self, order: ReleaseOrder) -> None:
        """Undo the job's quarantine.

        Effect: taint, annotation and condition are gone; the cordon is, if it was ours and nobody
            else has marked the node.
        Idempotent by: the job in the annotation.
        Heartbeats: yes.
        Gives up when: it is not allowed to; a node that is gone needs no release.
        """
        with as_failures():
            async with beating():
                await self._nodes.release(order.machine, order.job)

    @activity.defn(name="cluster.evict")
    async def evict(self, order: EvictOrder) -> Evicted | None:
        """Quarantine the node, then evict the pod, so that no other pod of the job takes its place.

        Effect: as for `cluster.quarantine`; the pod is labelled as evicted and is being deleted.
            None where somebody else has deleted the pod of a healthy node, which is not to blame.
        Idempotent by: job and incident in the node's annotation, and the pod's uid.
        Heartbeats: yes.
        Gives up when: it is not allowed to. A PodDisruptionBudget that stands against it is an
            answer: the label stays, by which the job's watch goes on trying. A pod on a dead node
            goes when the cluster says so; nobody waits for that.
        """
        with as_failures():
            async with beating():
                if await self._left_a_healthy_node(order):
                    return Evicted()
                await self._nodes.quarantine(order.machine.machine, _mark(order))
                return await self._evict(order.machine, order.incident)

    @activity.defn(name="cluster.request_machines")
    async def request_machines(self, request: MachineRequest) -> None:
        """See that the cluster brings the machines that a job lacks.

        Effect: the size of the job's set of standbys, where its pods are too few by themselves.
        Idempotent by: the size, which is computed from what is there.
        Heartbeats: no.
        Gives up when: it is not allowed to; without such a set it looks again, as pods may come.
        """
        with as_failures():
            await self._request(request)

    # --- Pods -------------------------------------------------------------------------------------

    async def _pods_of(self, job: str) -> list[Pod]:
        listed = await self._api.get(self._pods, {"labelSelector": pods_of(job)})
        return [pod_of(item) for item in listed["items"]]

    async def _list_machines(self, query: MachinesQuery) -> tuple[SeenMachine, ...]:
        pods = [pod for pod in await self._pods_of(query.job) if pod.node and not pod.ended]
        listed = await self._api.get(NODES)
        nodes: dict[str, Json] = {node["metadata"]["name"]: node for node in listed["items"]}
        return tuple(_seen(pod, nodes.get(pod.node), query.topology_label) for pod in pods)

    async def _claim(self, incident: int, slot: int, info: MachineInfo) -> str:
        """Why the machine is refused; empty when it has the slot."""
        try:
            pod = pod_of(await self._api.get(f"{self._pods}/{_pod_name(info)}"))
        except NotThereError:
            return f"pod {info.pod} is gone"
        if pod.uid != info.pod_uid or pod.ended:
            return f"pod {info.pod} {pod.why or 'is another one by now'}"
        try:
            node = await self._api.get(f"{NODES}/{pod.node}")
        except NotThereError:
            return f"node {pod.node} is not in the cluster any more"
        if why := _against(node):
            return why
        await self._show(info, ROLE_TRAINING, slot, incident)
        return ""

    async def _give_slots(self, order: SlotsOrder) -> None:
        slot_of = {machine: slot for slot, machine in enumerate(order.machines)}
        lane = asyncio.Semaphore(AT_ONCE)

        async def show(pod: Pod) -> None:
            slot = slot_of.get(pod.machine)
            role = ROLE_STANDBY if slot is None else ROLE_TRAINING
            wanted = "" if slot is None else str(slot)
            if pod.ended or pod.role == ROLE_EVICTED or (pod.role, pod.slot) == (role, wanted):
                return
            async with lane:
                await self._label(pod.name, pod.uid, role, slot, None)

        pods = [pod for pod in await self._pods_of(order.job) if pod.node]
        await asyncio.gather(*(show(pod) for pod in pods))

    async def _show(
        self, info: MachineInfo, role: str, slot: int | None, incident: int | None
    ) -> bool:
        return await self._label(_pod_name(info), info.pod_uid, role, slot, incident)

    async def _label(
        self, name: str, uid: str, role: str, slot: int | None, incident: int | None
    ) -> bool:
        """Label a pod; False when this very pod is not there any more."""
        labels = {LABEL_ROLE: role, LABEL_SLOT: None if slot is None else str(slot)}
        metadata: dict[str, Any] = {"uid": uid, "labels": labels}
        if incident is not None:
            metadata["annotations"] = {ANNOTATION_INCIDENT: str(incident)}
        try:
            await self._api.patch(f"{self._pods}/{name}", {"metadata": metadata})
        except NotThereError:
            return False
        except InvalidError:
            if await self._is_there(name, uid):
                raise
            return False
        return True

    async def _left_a_healthy_node(self, order: EvictOrder) -> bool:
        """Whether the pod is gone by somebody else's doing, and nothing speaks against its node."""
        info = order.machine
        try:
            node = await self._api.get(f"{NODES}/{info.machine}")
        except NotThereError:
            return False
        if any(m.job == order.job and m.incident == order.incident for m in marks_of(node)):
            return False
        if remarks_of(node) or readiness(node) is not Verdict.HEALTHY:
            return False
        try:
            pod = pod_of(await self._api.get(f"{self._pods}/{_pod_name(info)}"))
        except NotThereError:
            return True
        return pod.uid != info.pod_uid or (pod.ended and pod.role != ROLE_EVICTED)

    async def _evict(self, info: MachineInfo, incident: int) -> Evicted:
        if not await self._show(info, ROLE_EVICTED, None, incident):
            return Evicted()
        faultpoint.reached("evict_after_intent")
        try:
            answer = await self.evict_pod(_pod_name(info), info.pod_uid)
        except ChangedError:
            if await self._is_there(_pod_name(info), info.pod_uid):
                raise
            answer = Evicted()
        faultpoint.reached("evict_after_eviction")
        return answer

    async def evict_pod(self, name: str, uid: str) -> Evicted:
        """Ask for the eviction of this very pod.

        Raises:
            ChangedError: Another pod has the name by now, or the server asks to try again.
            EverstepError: As requests do.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            await self._api.post(f"{self._pods}/{name}/eviction", body)
        except NotThereError:
            return Evicted()
        except BudgetError as error:
            return Evicted(waiting=f"pod {name}: {error}")
        return Evicted()

    async def _is_there(self, name: str, uid: str) -> bool:
        try:
            return pod_of(await self._api.get(f"{self._pods}/{name}")).uid == uid
        except NotThereError:
            return False

    async def _request(self, request: MachineRequest) -> None:
        """Grow the set of standbys by what no controller brings by itself.

        A set replaces a pod that was deleted: what it is to have counts, and not what is there at
        this moment. It does not replace one that hangs on a dead node, so another makes up for
        that; sets are never made smaller here.
        """
        pods = await self._pods_of(request.job)
        ended = [pod for pod in pods if pod.ended]
        well = await asyncio.gather(*(self._is_well(pod.node) for pod in ended))
        stuck = {pod.uid for pod, is_well in zip(ended, well, strict=True) if not is_well}
        standby, training = standby_set(request.job), training_set(request.job)
        scale = await self._scale(standby)
        if scale is None:
            if (coming := len(pods) - len(stuck)) < request.total:
                raise TransientError(
                    f"{coming} of {request.total} pods are there, and no StatefulSet {standby} to"
                    " bring more: whatever keeps them has not replaced what is gone"
                )
            return
        others = await self._scale(training)
        size: int = scale["spec"]["replicas"]
        kept = sum(not pod.name.startswith(f"{standby}-") for pod in pods)
        coming = size + (kept if others is None else others["spec"]["replicas"]) - len(stuck)
        if coming < request.total:
            patch = {
                "metadata": {"resourceVersion": scale["metadata"]["resourceVersion"]},
                "spec": {"replicas": size + request.total - coming},
            }
            await self._api.patch(f"{self._sets}/{standby}/scale", patch)

    async def _scale(self, name: str) -> Json | None:
        """The size that a StatefulSet is to have; None where there is none."""
        try:
            return await self._api.get(f"{self._sets}/{name}/scale")
        except NotThereError:
            return None

    async def _is_well(self, node: str) -> bool:
        try:
            return readiness(await self._api.get(f"{NODES}/{node}")) is Verdict.HEALTHY
        except NotThereError:
            return False


def _pod_name(info: MachineInfo) -> str:
    if not info.pod or not info.pod_uid:
        raise PermanentError(
            f"the agent of {info.machine} did not say which pod it runs in: set EVERSTEP_POD_NAME"
            " and EVERSTEP_POD_UID"
        )
    return info.pod


def _mark(order: EvictOrder) -> Mark:
    return Mark(order.job, order.incident, order.reason, text_of(time.time()))


def _against(node: Json) -> str:
    """What speaks against a standby on this node; empty when nothing does."""
    name = node["metadata"]["name"]
    if is_quarantined(node):
        return f"node {name} is in quarantine"
    if remarks := remarks_of(node):
        return f"node {name}: {'; '.join(remark.text for remark in remarks)}"
    if readiness(node) is not Verdict.HEALTHY:
        return f"node {name} is not ready"
    return ""


def _seen(pod: Pod, node: Json | None, topology_label: str) -> SeenMachine:
    return SeenMachine(
        machine=pod.machine,
        slot=int(pod.slot) if pod.slot.isdigit() else None,
        quarantined=node is not None and is_quarantined(node),
        place="" if node is None else labels_of(node).get(topology_label, ""),
    )
