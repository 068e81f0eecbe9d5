"""A pod as far as a job cares. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from everstep.core.kubernetes.objects import conditions_of, labels_of, part
from everstep.core.kubernetes_names import (
    LABEL_MACHINE,
    LABEL_ROLE,
    LABEL_SLOT,
    ROLE_EVICTED,
)

ENDED_PHASES = ("Failed", "Succeeded")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a job.

    Attributes:
        name: Its name.
        uid: What tells it from an earlier or later one of that name.
        node: Where it runs; empty before it is scheduled.
        machine: Name of the machine that it is: its node's, or its own where pods share nodes;
            empty before it is scheduled.
        role: Label.
        slot: Label; empty without one.
        ready: Whether its agent serves.
        ended: Whether it is being deleted or its containers have ended, so that it comes no more.
        why: How it came to that: one sentence; empty otherwise.
        since_s: When, by the server's clock; None when that is not told.
    """

    name: str
    uid: str
    node: str
    machine: str
    role: str
    slot: str
    ready: bool
    ended: bool
    why: str
    since_s: float | None

    @property
    def awaits_eviction(self) -> bool:
        """Whether it was meant to be evicted, and nobody has begun to."""
        return self.role == ROLE_EVICTED and not self.ended


def pod_of(item: Mapping[str, Any]) -> Pod:
    """The pod in an object."""
    metadata, status, labels = part(item, "metadata"), part(item, "status"), labels_of(item)
    true = {c["type"]: c for c in conditions_of(item) if c["status"] == "True"}
    deleted_at, phase = metadata.get("deletionTimestamp"), status.get("phase", "")
    why, since_s = "", None
    if deleted_at is not None:
        target = part(true, "DisruptionTarget")
        why = f"is being deleted ({target.get('reason', 'no reason given')})"
        grace_s = metadata.get("deletionGracePeriodSeconds") or 0
        # What is told is when the last of it will be gone.
        since_s = seconds_of(deleted_at) - grace_s
    elif phase in ENDED_PHASES:
        why = f"has ended ({status.get('reason') or phase})"
    node = part(item, "spec").get("nodeName") or ""
    shares = labels.get(LABEL_MACHINE) == "pod"
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        node=node,
        machine=metadata["name"] if shares and node else node,
        role=labels.get(LABEL_ROLE, ""),
        slot=labels.get(LABEL_SLOT, ""),
        ready="Ready" in true,
        ended=bool(why),
        why=why,
        since_s=since_s,
    )


def seconds_of(text: str) -> float:
    """Unix seconds of a time as Kubernetes writes it: `2026-01-02T03:04:05Z`."""
    return datetime.fromisoformat(text).timestamp()


def text_of(at_s: float) -> str:
    """The other way round."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
