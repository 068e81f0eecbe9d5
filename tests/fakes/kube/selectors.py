"""Label and field selectors. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from everstep.core.kubernetes.objects import part
from tests.fakes.kube.patches import Json
from tests.fakes.kube.store import ApiError

FIELDS = {
    "pods": ("metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"),
    "nodes": ("metadata.name", "spec.unschedulable"),
}

Test = Callable[[Json], bool]


def selector(resource: str, labels: str, fields: str) -> Test:
    """What the two selectors of a request let through.

    Raises:
        ApiError: 400, one of them cannot be read.
    """
    tests = [_label(part) for part in _split(labels)]
    tests += [_field(resource, part) for part in fields.split(",") if part]
    return lambda item: all(test(item) for test in tests)


def matches(item: Json, wanted: Json) -> bool:
    """Whether an object matches a selector as it stands in objects: `matchLabels`, expressions."""
    labels = item["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in wanted.get("matchLabels", {}).items()):
        return False
    for rule in wanted.get("matchExpressions", []):
        has, values = rule["key"] in labels, rule.get("values", [])
        inside = labels.get(rule["key"]) in values
        holds = {
            "In": inside,
            "NotIn": not inside,
            "Exists": has,
            "DoesNotExist": not has,
        }[rule["operator"]]
        if not holds:
            return False
    return True


def _split(labels: str) -> list[str]:
    """At commas, but not at those inside of `in (a,b)`."""
    return [part.strip() for part in re.findall(r"(?:[^,(]|\([^)]*\))+", labels)]


def _label(text: str) -> Test:
    if found := re.fullmatch(r"(\S+) (in|notin) \(([^)]*)\)", text):
        key, kind, inside = found.groups()
        values = [value.strip() for value in inside.split(",")]
        operator = "In" if kind == "in" else "NotIn"
        rule = {"key": key, "operator": operator, "values": values}
    elif found := re.fullmatch(r"([^=!\s]+)\s*(==?|!=)\s*([^=!\s]*)", text):
        key, kind, value = found.groups()
        rule = {"key": key, "operator": "NotIn" if kind == "!=" else "In", "values": [value]}
    elif found := re.fullmatch(r"(!?)([^=!\s]+)", text):
        operator = "DoesNotExist" if found[1] else "Exists"
        rule = {"key": found[2], "operator": operator}
    else:
        raise ApiError(400, "BadRequest", f"unable to parse requirement: {text}")
    return lambda item: matches(item, {"matchExpressions": [rule]})


def _field(resource: str, text: str) -> Test:
    key, negated, value = text.partition("!=") if "!=" in text else text.partition("=")
    if key not in FIELDS.get(resource, ("metadata.name", "metadata.namespace")):
        raise ApiError(400, "BadRequest", f"field label not supported: {key}")
    wanted = value.removeprefix("=")

    def test(item: Json) -> bool:
        *parents, last = key.split(".")
        found: Any = part(item, *parents).get(last, "")
        said = str(found).lower() if isinstance(found, bool) else str(found)
        return (said == wanted) is (negated != "!=")

    return test
