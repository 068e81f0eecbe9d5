"""What a node says of itself, and what others have said of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everstep.core.kubernetes.objects import (
    Json,
    annotations_of,
    conditions_of,
    entries,
    labels_of,
    part,
)
from everstep.core.kubernetes_names import (
    ANNOTATION_QUARANTINED_BY,
    CONDITION_QUARANTINED,
    TAINT_QUARANTINE,
)
from everstep.core.vocabulary import Symptom, Verdict

NVSENTINEL_STATE = "dgxc.nvidia.com/nvsentinel-state"
NVSENTINEL_HEALTHY = frozenset({"", "remediation-succeeded"})
HYPERPOD_HEALTH = "sagemaker.amazonaws.com/node-health-status"
HYPERPOD_LEAVING = frozenset({"UnschedulablePendingReplacement", "UnschedulablePendingReboot"})

CERTAIN_CONDITIONS = {
    "KernelDeadlock": Symptom.OS_KERNEL_PANIC,
    "ReadonlyFilesystem": Symptom.FILESYSTEM_MOUNT,
    "XfsShutdown": Symptom.FILESYSTEM_MOUNT,
}
"""Of node-problem-detector, those that no machine recovers from by itself."""

CERTAIN_TAINTS = frozenset({"node.kubernetes.io/out-of-service", "ToBeDeletedByClusterAutoscaler"})
"""Whose node is about to go. Others may have stood there always: they keep GPUs for who needs them.
"""


@dataclass(frozen=True, slots=True)
class Remark:
    """What somebody else has said of a node.

    Attributes:
        source: Who, and in which place: stays the same while the remark does.
        text: One sentence.
        certain: Whether it is bad enough to leave the node.
        symptom: What it is a sign of.
    """

    source: str
    text: str
    certain: bool
    symptom: Symptom = Symptom.CONTAINER_ERROR


def is_quarantined(node: Json) -> bool:
    """Whether Everstep holds the node in quarantine, for any job."""
    return any(taint["key"] == TAINT_QUARANTINE for taint in entries(node, "spec", "taints"))


def readiness(node: Json) -> Verdict:
    """Whether the node's kubelet says that it is well; one that says nothing could not tell."""
    for condition in conditions_of(node):
        if condition["type"] == "Ready":
            told = {"True": Verdict.HEALTHY, "False": Verdict.FAULTY}
            return told.get(condition["status"], Verdict.UNOBSERVABLE)
    return Verdict.UNOBSERVABLE


def remarks_of(node: Json) -> list[Remark]:
    """What others have said of the node: NVSentinel, HyperPod, node-problem-detector, people."""
    found = [*_of_labels(labels_of(node)), *_of_conditions(node), *_of_taints(node)]
    if part(node, "spec").get("unschedulable") and not annotations_of(node).get(
        ANNOTATION_QUARANTINED_BY
    ):
        found.append(Remark("cordon", "cordoned by somebody else", certain=False))
    return found


def _of_labels(labels: Mapping[str, str]) -> list[Remark]:
    found: list[Remark] = []
    state = labels.get(NVSENTINEL_STATE, "")
    if state not in NVSENTINEL_HEALTHY:
        found.append(Remark("NVSentinel", f"NVSentinel says {state}", certain=True))
    health = labels.get(HYPERPOD_HEALTH, "Schedulable")
    if health != "Schedulable":
        leaving = health in HYPERPOD_LEAVING
        found.append(Remark("HyperPod", f"HyperPod says {health}", certain=leaving))
    return found


def _of_conditions(node: Json) -> list[Remark]:
    """Every condition but `Ready` tells of a problem when it is true."""
    found: list[Remark] = []
    for condition in conditions_of(node):
        name = condition["type"]
        if name in ("Ready", CONDITION_QUARANTINED) or condition["status"] != "True":
            continue
        certain = CERTAIN_CONDITIONS.get(name)
        said = condition.get("message") or condition.get("reason") or "no reason given"
        symptom = certain or Symptom.CONTAINER_ERROR
        remark = Remark(f"condition {name}", f"{name}: {said}", certain is not None, symptom)
        found.append(remark)
    return found


def _of_taints(node: Json) -> list[Remark]:
    keys = [str(taint["key"]) for taint in entries(node, "spec", "taints")]
    return [
        Remark(f"taint {key}", f"tainted {key}", certain=True)
        for key in keys
        if key in CERTAIN_TAINTS
    ]
