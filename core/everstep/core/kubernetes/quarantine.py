"""Marks on a node: what to change when it is taken out or given back. Pure.

A node in quarantine has our annotation, our taint, and is cordoned; all three live in one object
and change in one request, so that no death of a controller leaves a part of them. The condition
lives in the node's status, which takes a second request: it is set after the annotation and cleared
before it, so that a node whose annotation is gone has nothing of ours. Taints are a list that a
request replaces as a whole, so every patch carries the version that it was made from.

Only what Everstep did is undone: the annotation says whether it was us who cordoned, and a node
with somebody else's mark stays cordoned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from everstep.core.kubernetes.nodes import remarks_of
from everstep.core.kubernetes.objects import annotations_of, conditions_of, entries, part
from everstep.core.kubernetes_names import (
    ANNOTATION_QUARANTINED_BY,
    CONDITION_QUARANTINED,
    TAINT_EFFECT,
    TAINT_QUARANTINE,
    taint_value,
)

Json = dict[str, Any]

MAX_REASON_CHARS = 500
"""Of a sentence on a node; annotations and conditions are for glances."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Why one job holds a node in quarantine.

    Attributes:
        job: Name of the job.
        incident: Number of its incident.
        reason: One sentence.
        at: When, as Kubernetes writes times.
        cordoned: Whether the node was open before, so that it was Everstep who cordoned it.
    """

    job: str
    incident: int
    reason: str
    at: str
    cordoned: bool = False


def marks_of(node: Mapping[str, Any]) -> tuple[Mark, ...]:
    """Why the node is in quarantine, oldest first; what cannot be read is left out."""
    try:
        given = json.loads(annotations_of(node).get(ANNOTATION_QUARANTINED_BY, "[]"))
        return tuple(Mark(**item) for item in given)
    except (ValueError, TypeError):
        return ()


def quarantined(node: Mapping[str, Any], mark: Mark) -> Json | None:
    """What to change so that the job holds the node in quarantine; None if it does already.

    Returns:
        A JSON merge patch, valid for this version of the node alone.
    """
    marks = marks_of(node)
    mark = replace(mark, reason=mark.reason[:MAX_REASON_CHARS])
    before = next((known for known in marks if known.job == mark.job), None)
    if before is not None and before.incident == mark.incident:
        # The first time of an incident counts, so that a second call changes nothing.
        mark = before
    open_before = not part(node, "spec").get("unschedulable")
    ours = open_before or any(known.cordoned for known in marks)
    others = [known for known in marks if known.job != mark.job]
    after = [*others, replace(mark, cordoned=ours)]
    if tuple(after) == marks and not open_before and _tainted(node, after):
        return None
    return _patch(node, after, cordon=True)


def released(node: Mapping[str, Any], job: str) -> Json | None:
    """What to change so that the job holds the node no longer; None if it does not.

    The last job to leave takes taint and annotation away, and lifts the cordon if it is ours and
    nobody else has left a mark of their own on the node.
    """
    marks = marks_of(node)
    left = [mark for mark in marks if mark.job != job]
    if len(left) == len(marks):
        return None
    cordoned = any(mark.cordoned for mark in marks)
    if left:
        return _patch(node, [replace(mark, cordoned=cordoned) for mark in left], cordon=None)
    return _patch(node, [], cordon=False if cordoned and not remarks_of(node) else None)


def condition(node: Mapping[str, Any], marks: Sequence[Mark], at: str) -> Json | None:
    """What to change in the node's status so that it tells of these marks; None if it does.

    Args:
        node: The node.
        marks: Those that are, or are about to be.
        at: Now.
    """
    known = _condition_of(node)
    status = "True" if marks else "False"
    message = "; ".join(f"{m.job}, incident {m.incident}: {m.reason}" for m in marks)
    if known is None and not marks:
        return None
    if known is not None and (known["status"], known.get("message", "")) == (status, message):
        return None
    changed = known is None or known["status"] != status
    since = at if changed or known is None else known.get("lastTransitionTime", at)
    told = {
        "type": CONDITION_QUARANTINED,
        "status": status,
        "reason": "Evicted" if marks else "Released",
        "message": message,
        "lastHeartbeatTime": at,
        "lastTransitionTime": since,
    }
    version = node["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "status": {"conditions": [told]}}


def marks_without(node: Mapping[str, Any], job: str) -> tuple[Mark, ...]:
    """The marks that are left when the job has gone."""
    return tuple(mark for mark in marks_of(node) if mark.job != job)


def _condition_of(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    ours = (c for c in conditions_of(node) if c["type"] == CONDITION_QUARANTINED)
    return next(ours, None)


def _tainted(node: Mapping[str, Any], marks: Sequence[Mark]) -> bool:
    return _taint(marks) in entries(node, "spec", "taints")


def _taint(marks: Sequence[Mark]) -> Json:
    value = taint_value(marks[-1].job, marks[-1].incident)
    return {"key": TAINT_QUARANTINE, "value": value, "effect": TAINT_EFFECT}


def _patch(node: Mapping[str, Any], marks: Sequence[Mark], cordon: bool | None) -> Json:
    taints = [dict(t) for t in entries(node, "spec", "taints") if t["key"] != TAINT_QUARANTINE]
    if marks:
        taints.append(_taint(marks))
    spec: Json = {"taints": taints}
    if cordon is not None:
        # None, and not false, takes the field away, as `kubectl uncordon` leaves it.
        spec["unschedulable"] = True if cordon else None
    text = json.dumps([asdict(mark) for mark in marks]) if marks else None
    metadata = {
        "resourceVersion": node["metadata"]["resourceVersion"],
        "annotations": {ANNOTATION_QUARANTINED_BY: text},
    }
    return {"metadata": metadata, "spec": spec}
