"""What can go wrong between a client and an API server, ordered by a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """How a request fails."""

    ANSWER = "answer"
    """With a status code, before anything is done."""
    CUT_BEFORE = "cut before"
    """The connection ends, before anything is done."""
    CUT_AFTER = "cut after"
    """The connection ends, after it was done: the caller does not know."""
    SILENT = "silent"
    """Nothing ever comes over a connection that stays open."""
    SILENT_STREAM = "silent stream"
    """Likewise, after a watch was accepted; not even its end comes."""


class Right(NamedTuple):
    """To do something to a kind of object: by a Role in one namespace, or by a ClusterRole."""

    group: str
    resource: str
    verb: str
    namespaced: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A request, in the words of a Role; the user is whoever showed that token."""

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    dry: bool = False
    """Whether nothing is to be changed."""

    @property
    def right(self) -> Right:
        """What its user must have been given."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return Right(self.group, resource, self.verb, bool(self.namespace))


Test = Callable[[Call], bool]


@dataclass
class Fault:
    """What happens to the next `count` calls that a test lets through."""

    kind: Kind
    wanted: Test
    count: int = 1
    code: int = 503
    retry_after_s: int | None = None


@dataclass
class Faults:
    """All that is ordered."""

    waiting: list[Fault] = field(default_factory=list[Fault])

    def order(self, fault: Fault) -> None:
        self.waiting.append(fault)

    def take(self, call: Call) -> Fault | None:
        """The fault of this call, if one is ordered."""
        for fault in self.waiting:
            if fault.count > 0 and fault.wanted(call):
                fault.count -= 1
                return fault
        return None
