"""Reads torch's flight recorder in its JSON form: how far a rank is in each of its process groups.

Torch 2.7 to 2.13, NCCL and gloo. gloo leaves the state of an entry at "scheduled", counts completed
collectives late, does not record what goes from one rank to another, and names no members.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from everstep.core.stacks.numbers import whole_number
from everstep.core.stacks.words import printable

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Work:
    """A collective: the operation without its backend, and the elements of its inputs, if known."""

    operation: str
    elements: int | None

    def __str__(self) -> str:
        size = "" if self.elements is None else f" of {self.elements} elements"
        return f"{self.operation}{size}"


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far one rank is in one process group.

    Attributes:
        name: The group's name, the same on all of its members.
        description: What the program calls it; may be empty.
        members: Global ranks, or None where the recorder does not say.
        enqueued: Number of the last collective that the rank called; 0 for none.
        completed: Number of the last one that was done.
        works: What was called, by number, as far as it is still known.
        in_transfer: Whether the rank waits in a send or receive of this group.
    """

    name: str
    description: str
    members: tuple[int, ...] | None
    enqueued: int
    completed: int
    works: Mapping[int, Work] = field(default_factory=dict[int, Work])
    in_transfer: bool = False

    @property
    def waits(self) -> bool:
        """Whether the rank called something that is not done."""
        return self.enqueued > self.completed


@dataclass(frozen=True, slots=True)
class Recorder:
    """One rank's flight recorder.

    Attributes:
        groups: Process groups in which anything was called.
        records_transfers: Whether a send or receive would show; gloo's do not.
    """

    groups: tuple[GroupProgress, ...]
    records_transfers: bool = True


@dataclass(slots=True)
class _Draft:
    name: str
    description: str = ""
    members: tuple[int, ...] | None = None
    enqueued: int = 0
    completed: int = 0
    works: dict[int, Work] = field(default_factory=dict[int, Work])
    in_transfer: bool = False


def read_recorder(text: bytes) -> Recorder | None:
    """How far a rank is; None when the text is cut off, or says nothing of any group."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list):
        value = {"entries": cast("list[object]", value)}
    dump = _dict(value)
    drafts: dict[str, _Draft] = {}
    names: dict[str, str] = {}
    for entry in _dicts(dump.get("entries")):
        _take_entry(entry, drafts, names)
    _take_configuration(_dict(dump.get("pg_config")), drafts)
    for number, status in _dict(dump.get("pg_status")).items():
        _take_status(drafts.setdefault(names.get(number, number), _Draft(number)), _dict(status))
    for draft in drafts.values():
        # Older entries than the oldest were thrown away, which happens to finished ones.
        draft.completed = max(draft.completed, min(draft.works, default=1) - 1)
    groups = [draft for draft in drafts.values() if draft.enqueued > 0 or draft.in_transfer]
    if not groups:
        return None
    return Recorder(
        tuple(
            GroupProgress(
                draft.name,
                draft.description,
                draft.members,
                draft.enqueued,
                draft.completed,
                draft.works,
                draft.in_transfer,
            )
            for draft in groups
        ),
        records_transfers=b'"gloo:' not in text,
    )


def _take_entry(entry: dict[str, Any], drafts: dict[str, _Draft], names: dict[str, str]) -> None:
    group = entry.get("process_group")
    parts = (
        [printable(part) for part in cast("list[object]", group)] if isinstance(group, list) else []
    )
    number = str(entry.get("pg_id", ""))
    name = parts[0] if parts else number
    names.setdefault(number, name)
    draft = drafts.setdefault(name, _Draft(name))
    if len(parts) > 1:
        draft.description = parts[1]
    done = bool(entry.get("retired")) or str(entry.get("state", "")) == "completed"
    if entry.get("is_p2p"):
        draft.in_transfer = draft.in_transfer or not done
        return
    sequence = whole_number(entry.get("collective_seq_id", entry.get("seq_id")))
    if sequence is None:
        return
    operation = printable(entry.get("profiling_name", "")).rpartition(":")[2]
    draft.works[sequence] = Work(operation, _elements(entry.get("input_sizes")))
    draft.enqueued = max(draft.enqueued, sequence)
    if done:
        draft.completed = max(draft.completed, sequence)


def _take_configuration(configuration: dict[str, Any], drafts: dict[str, _Draft]) -> None:
    for key, value in configuration.items():
        fields = _dict(value)
        draft = drafts.get(printable(fields.get("name") or key))
        if draft is None:
            draft = drafts.get(key)
        if draft is None:
            name = printable(fields.get("name") or key)
            draft = drafts[name] = _Draft(name)
        draft.description = printable(fields.get("desc") or draft.description)
        draft.members = _ranks(str(fields.get("ranks", ""))) or draft.members


# One object for all members of a group: the world of a large job is a long text on every rank.
@lru_cache(maxsize=4096)
def _ranks(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(found) for found in _NUMBER.findall(text)}))


def _take_status(draft: _Draft, status: dict[str, Any]) -> None:
    enqueued = whole_number(status.get("last_enqueued_collective"))
    completed = whole_number(status.get("last_completed_collective"))
    # Neither source is complete: entries are thrown away when there are too many, and gloo counts
    # what was completed only some time after it was.
    draft.enqueued = max(draft.enqueued, enqueued or 0)
    draft.completed = max(draft.completed, completed or 0)


def _elements(sizes: object) -> int | None:
    if not isinstance(sizes, list):
        return None
    shapes = cast("list[object]", sizes)
    try:
        return sum(
            math.prod(int(size) for size in cast("list[int]", shape))
            for shape in shapes
            if isinstance(shape, list)
        )
    except (TypeError, ValueError):
        return None


def _dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _dicts(value: object) -> Iterable[dict[str, Any]]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return (cast("dict[str, Any]", item) for item in items if isinstance(item, dict))
