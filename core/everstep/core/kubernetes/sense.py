"""From pods and nodes as they stand to alerts: level-triggered, each fault told once. Pure.

What happened between two looks is no matter: deletions leave no event when a watch had to start
again, so what is gone is found by missing it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from everstep.core.kubernetes.nodes import Remark
from everstep.core.kubernetes.pods import Pod
from everstep.core.kubernetes_names import ROLE_EVICTED
from everstep.core.model import Alert
from everstep.core.vocabulary import Observer, Symptom, Verdict


@dataclass(frozen=True, slots=True)
class Node:
    """A node as far as a job cares.

    Attributes:
        name: Its name.
        readiness: What its kubelet says.
        remarks: What others have said of it.
    """

    name: str
    readiness: Verdict
    remarks: tuple[Remark, ...]


class ClusterSense:
    """Tells what was lost, and what others say of the machines that a job has.

    Args:
        hears: Whether the agent of a machine is heard at this moment: a kubelet that says nothing
            while the agent does is no reason to leave the machine.
    """

    def __init__(self, hears: Callable[[str], bool]) -> None:
        self._hears = hears
        self._alive: dict[str, Pod] = {}
        self._told: set[str] = set()

    def look(self, pods: Mapping[str, Pod], nodes: Mapping[str, Node], now_s: float) -> list[Alert]:
        """Alerts that are new since the last look.

        Args:
            pods: The job's pods by uid, all of them.
            nodes: The cluster's nodes by name, all of them.
            now_s: Unix seconds.
        """
        living = {pod.machine: pod.node for pod in pods.values() if pod.node and not pod.ended}
        here: dict[str, Alert] = {}
        for pod in self._gone(pods):
            if pod.role != ROLE_EVICTED and pod.machine not in living:
                # What an earlier pod left says nothing of a later one on its machine.
                why = pod.why if pod.ended else "is gone"
                since_s = now_s if pod.since_s is None else min(now_s, pod.since_s)
                text = f"pod {pod.name} on {pod.node} {why}"
                here[f"pod {pod.uid}"] = self._lost(pod.machine, since_s, text)
        for machine, node in sorted(living.items()):
            here |= self._of_node(machine, node, nodes.get(node), now_s)
        new = [alert for key, alert in here.items() if key not in self._told]
        # A fault that has passed, and comes again, is told again.
        self._told = {key for key in self._told if key in here or key.startswith("pod ")}
        self._told |= set(here)
        self._alive = {uid: pod for uid, pod in pods.items() if pod.node and not pod.ended}
        return new

    def _gone(self, pods: Mapping[str, Pod]) -> list[Pod]:
        """Pods that end, and those that were there at the last look and are not any more."""
        ending = [pod for pod in pods.values() if pod.node and pod.ended]
        missing = [pod for uid, pod in self._alive.items() if uid not in pods]
        return [*ending, *missing]

    def _of_node(
        self, machine: str, name: str, node: Node | None, now_s: float
    ) -> dict[str, Alert]:
        if node is None:
            text = f"node {name} is not in the cluster any more"
            return {f"node {machine}": self._lost(machine, now_s, text)}
        found: dict[str, Alert] = {}
        if node.readiness is not Verdict.HEALTHY:
            said = "is not ready" if node.readiness is Verdict.FAULTY else "does not say how it is"
            if self._hears(machine):
                # Noted, and nothing is stopped for it.
                text = f"node {name} {said}, while its agent is heard"
                found[f"ready {machine}"] = _of_part(
                    machine, Remark("readiness", text, certain=False), now_s
                )
            else:
                found[f"silent {machine}"] = self._lost(machine, now_s, f"node {name} {said}")
        for remark in node.remarks:
            key = f"{machine} {remark.source} {remark.certain}"
            found[key] = _of_part(machine, remark, now_s)
        return found

    @staticmethod
    def _lost(machine: str, at_s: float, detail: str) -> Alert:
        return Alert(Observer.CLUSTER, Symptom.AGENT_LOST, at_s, detail, machine=machine)


def _of_part(machine: str, remark: Remark, now_s: float) -> Alert:
    return Alert(
        Observer.CLUSTER,
        remark.symptom,
        now_s,
        f"{machine}: {remark.text}",
        machine=machine,
        subject=f"node, {remark.source}",
        confident=remark.certain,
    )
