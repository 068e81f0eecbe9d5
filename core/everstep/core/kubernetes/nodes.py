"""What a node says of itself, and what others have said of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.core.kubernetes_names import (
    ANNOTATION_QUARANTINED_BY,
    CONDITION_QUARANTINED,
    TAINT_QUARANTINE,
)
from everstep.core.vocabulary import Symptom, Verdict

Json = Mapping[str, Any]

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


def annotations_of(node: Json) -> Mapping[str, str]:
    """The annotations of any object."""
    return node["metadata"].get("annotations") or {}


def labels_of(item: Json) -> Mapping[str, str]:
    """The labels of any object."""
    return item["metadata"].get("labels") or {}


def spec_of(item: Json) -> Json:
    """The specification of any object."""
    return item.get("spec") or {}


def is_quarantined(node: Json) -> bool:
    """Whether Everstep holds the node in quarantine, for any job."""
    taints = spec_of(node).get("taints") or []
    return any(taint["key"] == TAINT_QUARANTINE for taint in taints)


def readiness(node: Json) -> Verdict:
    """Whether the node's kubelet says that it is well; one that says nothing could not tell."""
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Ready":
            told = {"True": Verdict.HEALTHY, "False": Verdict.FAULTY}
            return told.get(condition["status"], Verdict.UNOBSERVABLE)
    return Verdict.UNOBSERVABLE


def remarks_of(node: Json) -> list[Remark]:
    """What others have said of the node: NVSentinel, HyperPod, node-problem-detector, people."""
    found = [*_of_labels(labels_of(node)), *_of_conditions(node), *_of_taints(node)]
    if spec_of(node).get("unschedulable") and not annotations_of(node).get(
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
    for condition in (node.get("status") or {}).get("conditions") or []:
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
    keys = [str(taint["key"]) for taint in spec_of(node).get("taints") or []]
    return [
        Remark(f"taint {key}", f"tainted {key}", certain=True)
        for key in keys
        if key in CERTAIN_TAINTS
    ]
