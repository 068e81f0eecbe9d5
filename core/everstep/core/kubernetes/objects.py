"""Reading objects as they come: what is left out is empty. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

_NOTHING: Json = {}


def part(item: Json, *names: str) -> Json:
    """The object under these names, one inside the other; empty where it is not there."""
    for name in names:
        item = item.get(name) or _NOTHING
    return item


def entries(item: Json, *names: str) -> list[Json]:
    """The list of objects under these names; empty where it is not there."""
    found: list[Json] = part(item, *names[:-1]).get(names[-1]) or []
    return found


def annotations_of(item: Json) -> Mapping[str, str]:
    """The annotations of any object."""
    return part(item, "metadata", "annotations")


def labels_of(item: Json) -> Mapping[str, str]:
    """The labels of any object."""
    return part(item, "metadata", "labels")


def conditions_of(item: Json) -> list[Json]:
    """The conditions of any object, as they are said to stand."""
    return entries(item, "status", "conditions")
