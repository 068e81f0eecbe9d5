"""Words on Kubernetes objects: shared by the adapter, the manifests and people's kubectl.

Wire format, so changed only with a migration (a test pins them). A machine is a pod with an agent,
and is named for its node, so that its history stays with the hardware.

A controller's selector (StatefulSet, JobSet) must hold `LABEL_JOB` and labels of its own alone:
role and slot of a pod change while it lives, and it would be orphaned.
"""

from __future__ import annotations

import re

PREFIX = "everstep.dev"

# On pods. `kubectl get pods -L everstep.dev/role,everstep.dev/slot` shows who holds which slot.
LABEL_JOB = f"{PREFIX}/job"
LABEL_ROLE = f"{PREFIX}/role"
LABEL_SLOT = f"{PREFIX}/slot"
LABEL_MACHINE = f"{PREFIX}/machine"
"""What a machine is named for: `pod` where pods share nodes, else for its node."""
ANNOTATION_INCIDENT = f"{PREFIX}/incident"

ROLE_TRAINING = "training"
ROLE_STANDBY = "standby"
ROLE_EVICTED = "evicted"
"""Is to go: set before the eviction is asked for, so that whoever comes later knows. A budget
that selects the other two roles so guards them against others and never holds up ours."""

# On nodes.
TAINT_QUARANTINE = f"{PREFIX}/quarantine"
TAINT_EFFECT = "NoSchedule"
CONDITION_QUARANTINED = "EverstepQuarantined"
ANNOTATION_QUARANTINED_BY = f"{PREFIX}/quarantined-by"

TOPOLOGY_RACK = "topology.kubernetes.io/rack"
"""What a spec's `topology_label` usually names."""

MAX_VALUE_CHARS = 63
"""Kubernetes' limit for the value of a label, and of a taint."""


def taint_value(job: str, incident: int) -> str:
    """Value of the quarantine taint: `<job>.<incident>`; a long job's name is cut."""
    tail = f".{incident}"
    return f"{job[: MAX_VALUE_CHARS - len(tail)]}{tail}"


def pods_of(job: str) -> str:
    """Label selector for the machines of a job; its other pods, the analyzer's, have no role."""
    return f"{LABEL_JOB}={job},{LABEL_ROLE}"


def standby_set(job: str) -> str:
    """Name of the StatefulSet of a job's standbys, where it has one."""
    return f"everstep-{job}-standby"


def training_set(job: str) -> str:
    """Name of the StatefulSet of the machines that a job begins with, where it has one."""
    return f"everstep-{job}-training"


def is_label_key(text: str) -> bool:
    """Whether a text can name a label: an optional DNS prefix, a slash, and a short name."""
    prefix, slash, name = text.rpartition("/")
    named = re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", name)
    if slash and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", prefix):
        return False
    return named is not None


def is_namespace(text: str) -> bool:
    """Whether a text can name a namespace: a DNS label."""
    return re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text) is not None


def is_object_name(text: str) -> bool:
    """Whether a text can name most other objects: a DNS name."""
    label = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    return len(text) <= 253 and re.fullmatch(rf"{label}(\.{label})*", text) is not None


def is_image(text: str) -> bool:
    """Whether a text can name an image; whether there is one, a registry knows."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", text) is not None
