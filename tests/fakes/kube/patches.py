"""The three ways to patch an object, as an API server applies them. Pure."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]

MERGED_BY = {"conditions": "type", "addresses": "type", "containers": "name"}
"""Lists that a strategic patch merges by a key. All others, taints too, it replaces."""


class PatchTestFailedError(Exception):
    """A `test` of a JSON patch did not hold."""


def merged(target: Json, patch: Json) -> Json:
    """A JSON merge patch (RFC 7386): null deletes, lists are replaced."""
    result = copy.copy(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            result[key] = value
    return result


def strategically_merged(target: Json, patch: Json) -> Json:
    """Like `merged`, but lists of `MERGED_BY` are merged by their key."""
    result = copy.copy(target)
    for key, value in patch.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            base: Json = before if isinstance(before, dict) else {}  # pyright: ignore[reportUnknownVariableType]
            result[key] = strategically_merged(base, value)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list) and key in MERGED_BY:
            result[key] = _merged_list(before or [], value, MERGED_BY[key])  # pyright: ignore[reportUnknownArgumentType]
        else:
            result[key] = value
    return result


def _merged_list(before: list[Json], patch: list[Json], key: str) -> list[Json]:
    result = list(before)
    for item in patch:
        name = item.get(key)
        places = [place for place, known in enumerate(result) if known.get(key) == name]
        if item.get("$patch") == "delete":
            result = [known for known in result if known.get(key) != name]
        elif places:
            result[places[0]] = strategically_merged(result[places[0]], item)
        else:
            result.append(item)
    return result


def json_patched(target: Json, operations: list[Json]) -> Json:
    """A JSON patch (RFC 6902): add, replace, remove and test.

    Raises:
        PatchTestFailedError: A test did not hold, or a place is not there.
    """
    result = copy.deepcopy(target)
    for operation in operations:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        place: Any = result
        try:
            for part in parents:
                place = place[int(part) if isinstance(place, list) else part]
            _apply(place, last, operation)
        except (KeyError, IndexError, ValueError) as error:
            raise PatchTestFailedError(f"no such place: {operation['path']}") from error
    return result


def _apply(place: Any, last: str, operation: Json) -> None:
    kind = operation["op"]
    key: Any = last
    if isinstance(place, list) and last != "-":
        key = int(last)
    if kind == "test":
        if place[key] != operation["value"]:
            raise PatchTestFailedError(f"test of {operation['path']} failed")
    elif kind == "remove":
        del place[key]
    elif isinstance(place, list):
        if kind == "replace":
            place[key] = operation["value"]
        else:
            place.insert(len(place) if last == "-" else key, operation["value"])  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    else:
        if kind == "replace" and key not in place:
            raise KeyError(key)
        place[key] = operation["value"]
