"""What an HTTP request asks of an API server, in the words of a Role."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aiohttp import web

from tests.fakes.kube.faults import Call
from tests.fakes.kube.selectors import Test, selector
from tests.fakes.kube.store import ApiError, Key

_PATH = re.compile(
    r"(?P<prefix>/api/v1|/apis/[^/]+/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    key: Key
    subresource: str
    call: Call


def target_of(request: web.Request) -> Target:
    found = _PATH.fullmatch(request.path)
    if found is None:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    part = {name: value or "" for name, value in found.groupdict().items()}
    # `/api/v1/namespaces/x` is a namespace, and `/api/v1/namespaces/x/pods` is in one.
    key = Key(part["prefix"], part["resource"], part["namespace"], part["name"])
    watches = request.query.get("watch") in ("true", "1", "True")
    verb = {
        "GET": "get" if key.name else "watch" if watches else "list",
        "POST": "create",
        "PATCH": "patch",
        "PUT": "update",
        "DELETE": "delete",
    }[request.method]
    group = key.prefix.split("/")[2] if key.prefix.startswith("/apis/") else ""
    user = request.headers.get("Authorization", "").removeprefix("Bearer ")
    dry = request.query.get("dryRun") == "All"
    call = Call(user, verb, group, key.resource, part["subresource"], key.namespace, dry)
    return Target(key, part["subresource"], call)


def selection_of(request: web.Request, target: Target) -> Test:
    query = request.query
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    return selector(target.key.resource, labels, fields)
