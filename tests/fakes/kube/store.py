"""Objects with versions, and the history of their changes: what an API server keeps in etcd."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.fakes.kube.patches import Json

MAX_EVENTS = 20_000


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Where an object lives: `Key("/api/v1", "pods", "training", "p0")`."""

    prefix: str
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object; `before` or `after` is None when it was made or deleted."""

    version: int
    key: Key
    before: Json | None
    after: Json | None


class ApiError(Exception):
    """An answer other than the one that was hoped for, as an API server words it."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        causes: Iterable[Json] = (),
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        details: Json = {"causes": list(causes)} if causes else {}
        if retry_after_s is not None:
            details["retryAfterSeconds"] = retry_after_s
        self.body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Store:
    """All objects. Values are never changed in place, so that history can hold them."""

    objects: dict[Key, Json] = field(default_factory=dict[Key, Json])
    changes: deque[Change] = field(default_factory=lambda: deque[Change](maxlen=MAX_EVENTS))
    version: int = 1
    oldest: int = 1
    """Versions before this one are forgotten."""

    def __post_init__(self) -> None:
        self.changed = asyncio.Event()

    def get(self, key: Key) -> Json:
        """The object.

        Raises:
            ApiError: 404.
        """
        if key not in self.objects:
            raise ApiError(404, "NotFound", f'{key.resource} "{key.name}" not found')
        return self.objects[key]

    def of(self, prefix: str, resource: str, namespace: str) -> list[Json]:
        """All objects of a kind, of all namespaces if the given one is empty."""
        return [
            item
            for key, item in sorted(self.objects.items())
            if (key.prefix, key.resource) == (prefix, resource) and namespace in ("", key.namespace)
        ]

    def create(self, key: Key, given: Json, dry: bool = False) -> Json:
        """Keep a new object, if it is no dry run, under the identity that a server gives it.

        Raises:
            ApiError: 409, one of that name is there.
        """
        if key in self.objects:
            raise ApiError(409, "AlreadyExists", f'{key.resource} "{key.name}" already exists')
        identity = {"name": key.name, "uid": str(uuid.uuid4()), "creationTimestamp": now_text()}
        if key.namespace:
            identity["namespace"] = key.namespace
        metadata = {**given.get("metadata", {}), **identity, "generation": 1}
        if dry:
            return {**given, "metadata": metadata}
        return self._put(key, {**given, "metadata": metadata})

    def replace(self, key: Key, after: Json) -> Json:
        """Keep a changed object; what changes nothing makes no version and no event."""
        before = self.objects[key]
        if after == before:
            return before
        if after.get("spec") != before.get("spec"):
            generation = before["metadata"].get("generation", 1) + 1
            after = {**after, "metadata": {**after["metadata"], "generation": generation}}
        return self._put(key, after)

    def remove(self, key: Key) -> Json:
        before = self.objects.pop(key)
        self.version += 1
        # A deletion has a version of its own, which the last state of the object carries.
        metadata = {**before["metadata"], "resourceVersion": str(self.version)}
        self._note(Change(self.version, key, {**before, "metadata": metadata}, None))
        return before

    def compact(self) -> None:
        """Forget all history: whoever watches from before gets 410."""
        self.version += 1
        self.oldest = self.version
        self.changes.clear()

    def since(self, version: int, wanted: Callable[[Key], bool]) -> list[Change]:
        """Changes after a version.

        Raises:
            ApiError: 410, they are not all known any more.
        """
        if version < self.oldest:
            text = f"too old resource version: {version} ({self.oldest})"
            raise ApiError(410, "Expired", text)
        newer = itertools.takewhile(lambda c: c.version > version, reversed(self.changes))
        return [change for change in newer if wanted(change.key)][::-1]

    def _put(self, key: Key, item: Json) -> Json:
        self.version += 1
        metadata = {**item["metadata"], "resourceVersion": str(self.version)}
        item = {**item, "metadata": metadata}
        before = self.objects.get(key)
        self.objects[key] = item
        self._note(Change(self.version, key, before, item))
        return item

    def _note(self, change: Change) -> None:
        if len(self.changes) == MAX_EVENTS:
            self.oldest = self.changes[0].version
        self.changes.append(change)
        self.changed.set()
        self.changed = asyncio.Event()
