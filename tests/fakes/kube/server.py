"""An API server over HTTP that keeps the promises on which the adapter stands.

`tests/contract/test_kube_api.py` holds them, and also runs against a real server. What no double
has is not here either: admission, roles (calls are noted instead), schemas, a scheduler, kubelets
and controllers; `tests.fakes.kube.plays` plays the last three, through the API alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from everstep.core.kubernetes.objects import part
from tests.fakes.kube.asked import Target, selection_of, target_of
from tests.fakes.kube.eviction import check_uid, delete_pod, evict
from tests.fakes.kube.faults import Call, Fault, Faults, Kind, Right
from tests.fakes.kube.patches import (
    Json,
    PatchTestFailedError,
    json_patched,
    merged,
    strategically_merged,
)
from tests.fakes.kube.selectors import Test
from tests.fakes.kube.store import ApiError, Change, Key, Store

HOST = "127.0.0.1"
CERTIFICATE = Path(__file__).with_name("ca.pem")
CLUSTER_WIDE = {"nodes", "namespaces"}
WITH_STATUS = {"pods", "nodes", "poddisruptionbudgets", "statefulsets", "namespaces", "jobsets"}
NAMESPACES = ("default", "kube-system", "kube-node-lease")
KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "namespaces": "Namespace",
    "jobs": "Job",
    "leases": "Lease",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "serviceaccounts": "ServiceAccount",
    "statefulsets": "StatefulSet",
}
LONGEST_WATCH_S = 1800.0
PATCHES = {
    "application/merge-patch+json": merged,
    "application/strategic-merge-patch+json": strategically_merged,
}


class KubeServer:
    """Answers requests from a store.

    Args:
        bookmarks: Whether watches that ask for bookmarks get one when they end.
    """

    def __init__(self, bookmarks: bool = False) -> None:
        self.store = Store()
        for name in NAMESPACES:
            self.store.create(Key("/api/v1", "namespaces", "", name), {"spec": {}, "status": {}})
        self.faults = Faults()
        self.calls: set[Call] = set()
        self.rights: dict[str, frozenset[Right]] = {}
        """What users may do; who is not named here may do all."""
        self.bookmarks = bookmarks
        self.documents: dict[str, Json] = {
            "/version": {"gitVersion": "v1.36.2-fake"},
            "/apis/jobset.x-k8s.io/v1alpha2": {"kind": "APIResourceList", "resources": []},
        }
        """What is told of the server itself, by path."""
        self.url = ""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        return app

    # --- From HTTP and back -----------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            if (document := self.documents.get(request.path)) is not None:
                return web.json_response(document)
            target = target_of(request)
            self.calls.add(target.call)
            self._check_right(target.call)
            fault = self.faults.take(target.call)
            if fault is not None:
                await self._fail(request, fault)
            if target.call.verb == "watch":
                return await self._watch(request, target, fault)
            raw = await request.read()
            body: Any = json.loads(raw or b"{}")
            answer = self._answer(request, target, body)
            if fault is not None and fault.kind is Kind.CUT_AFTER:
                _cut(request)
            code = 201 if request.method == "POST" else 200
            return web.json_response(answer, status=code)
        except ApiError as error:
            headers: dict[str, str] = {}
            if error.retry_after_s is not None:
                headers["Retry-After"] = str(error.retry_after_s)
            return web.json_response(error.body, status=error.code, headers=headers)

    def _check_right(self, call: Call) -> None:
        if call.user in self.rights and call.right not in self.rights[call.user]:
            text = f'User "{call.user}" cannot {call.verb} resource "{call.right.resource}"'
            raise ApiError(403, "Forbidden", text)

    async def _fail(self, request: web.Request, fault: Fault) -> None:
        if fault.kind is Kind.ANSWER:
            reason = {429: "TooManyRequests", 503: "ServiceUnavailable"}.get(fault.code, "Error")
            raise ApiError(fault.code, reason, "ordered by a test", (), fault.retry_after_s)
        if fault.kind is Kind.CUT_BEFORE:
            _cut(request)
        if fault.kind is Kind.SILENT:
            await asyncio.sleep(LONGEST_WATCH_S)

    def _answer(self, request: web.Request, target: Target, body: Any) -> Json:
        verb = target.call.verb
        if verb == "create":
            return self._create(target, body)
        if verb == "list":
            return self._list(request, target)
        if verb == "get":
            return self._get(target)
        if verb == "patch":
            return self._patch(request.content_type, target, body)
        if verb == "update":
            return self._update(target, body)
        if verb == "delete":
            return self._delete(request, target, body)
        raise ApiError(405, "MethodNotAllowed", f"{verb} is not supported")

    # --- What a request does ----------------------------------------------------------------------

    def _create(self, target: Target, body: Json) -> Json:
        key = target.key
        if key.resource in ("selfsubjectaccessreviews", "subjectaccessreviews"):
            return {**body, "status": {"allowed": True}}
        if target.subresource == "eviction":
            evict(self.store, key, body)
            return _success()
        if target.subresource == "binding":
            self._bind(key, body)
            return _success()
        if key.namespace:
            self.store.get(Key("/api/v1", "namespaces", "", key.namespace))
        metadata = body.get("metadata", {})
        name = metadata.get("name") or f"{metadata.get('generateName', '')}{uuid.uuid4().hex[:5]}"
        body = {"kind": KINDS.get(key.resource, ""), "apiVersion": _version(key.prefix), **body}
        if key.resource == "pods":
            body = {**body, "status": {"phase": "Pending", "qosClass": "BestEffort"}}
        elif key.resource in ("nodes", "namespaces"):
            body = {"spec": {}, "status": {}, **body}
        _check_times(key, body)
        key = Key(key.prefix, key.resource, key.namespace, name)
        return self.store.create(key, body, dry=target.call.dry)

    def _bind(self, key: Key, body: Json) -> None:
        pod = self.store.get(key)
        if pod["spec"].get("nodeName"):
            raise ApiError(409, "Conflict", f"pod {key.name} is already assigned to a node")
        spec = {**pod["spec"], "nodeName": body["target"]["name"]}
        scheduled = {"type": "PodScheduled", "status": "True"}
        status = strategically_merged(pod["status"], {"conditions": [scheduled]})
        self.store.replace(key, {**pod, "spec": spec, "status": status})

    def _list(self, request: web.Request, target: Target) -> Json:
        key, wanted = target.key, selection_of(request, target)
        items = [i for i in self.store.of(key.prefix, key.resource, key.namespace) if wanted(i)]
        return {
            "kind": f"{KINDS.get(key.resource, '')}List",
            "apiVersion": _version(key.prefix),
            "metadata": {"resourceVersion": str(self.store.version)},
            "items": items,
        }

    def _get(self, target: Target) -> Json:
        item = self.store.get(target.key)
        return _scale(item) if target.subresource == "scale" else item

    def _patch(self, content_type: str, target: Target, body: Any) -> Json:
        before = self.store.get(target.key)
        if content_type == "application/json-patch+json":
            try:
                after = json_patched(before, body)
            except PatchTestFailedError as error:
                raise ApiError(422, "Invalid", str(error)) from error
        elif content_type in PATCHES:
            _check_version(target.key, before, body.get("metadata", {}).get("resourceVersion"))
            after = PATCHES[content_type](before, body)
            if after["metadata"].get("uid") != before["metadata"]["uid"]:
                raise ApiError(422, "Invalid", "metadata.uid: field is immutable")
        else:
            raise ApiError(415, "UnsupportedMediaType", f"{content_type} is not supported")
        return self._keep(target, before, after)

    def _update(self, target: Target, body: Json) -> Json:
        before = self.store.get(target.key)
        _check_version(target.key, before, body["metadata"].get("resourceVersion"))
        check_uid(target.key, before, {"preconditions": {"uid": body["metadata"].get("uid")}})
        return self._keep(target, before, body)

    def _keep(self, target: Target, before: Json, after: Json) -> Json:
        _check_times(target.key, after)
        fixed = ("uid", "creationTimestamp", "resourceVersion", "name", "namespace")
        known = {field: before["metadata"][field] for field in fixed if field in before["metadata"]}
        after = {**after, "metadata": {**after["metadata"], **known}}
        if target.subresource == "scale":
            replicas = after["spec"]["replicas"]
            spec = {**before["spec"], "replicas": replicas}
            return _scale(self.store.replace(target.key, {**before, "spec": spec}))
        if target.subresource == "status":
            after = {**before, "status": after.get("status", {})}
        elif target.key.resource in WITH_STATUS:
            after = {**after, "status": before.get("status", {})}
        if target.key.resource == "pods" and after["spec"] != before["spec"]:
            raise ApiError(422, "Invalid", "pod updates may not change fields other than image")
        if target.call.dry:
            return after
        return self.store.replace(target.key, after)

    def _delete(self, request: web.Request, target: Target, body: Json) -> Json:
        if not body and "gracePeriodSeconds" in request.query:
            body = {"gracePeriodSeconds": int(request.query["gracePeriodSeconds"])}
        if target.key.resource == "pods":
            return delete_pod(self.store, target.key, body)
        check_uid(target.key, self.store.get(target.key), body)
        self.store.remove(target.key)
        return _success()

    # --- Watching ---------------------------------------------------------------------------------

    async def _watch(
        self, request: web.Request, target: Target, fault: Fault | None
    ) -> web.StreamResponse:
        wanted = selection_of(request, target)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if fault is not None and fault.kind is Kind.SILENT_STREAM:
            await asyncio.sleep(LONGEST_WATCH_S)
        limit_s = float(request.query.get("timeoutSeconds", LONGEST_WATCH_S))
        with contextlib.suppress(ConnectionError):
            try:
                async with asyncio.timeout(limit_s):
                    await self._stream(response, request, target.key, wanted)
            except TimeoutError:
                if self.bookmarks and request.query.get("allowWatchBookmarks") == "true":
                    metadata = {"resourceVersion": str(self.store.version)}
                    kind = KINDS.get(target.key.resource, "")
                    bookmark: Json = {"kind": kind, "metadata": metadata}
                    await _send(response, "BOOKMARK", bookmark)
            except ApiError as error:
                await _send(response, "ERROR", error.body)
            await response.write_eof()
        return response

    async def _stream(
        self, response: web.StreamResponse, request: web.Request, key: Key, wanted: Test
    ) -> None:
        version = int(request.query.get("resourceVersion") or 0)
        if not version:
            version = self.store.version
            for item in self.store.of(key.prefix, key.resource, key.namespace):
                if wanted(item):
                    await _send(response, "ADDED", item)

        def concerns(other: Key) -> bool:
            same = (other.prefix, other.resource) == (key.prefix, key.resource)
            return same and key.namespace in ("", other.namespace)

        while True:
            changed = self.store.changed
            for change in self.store.since(version, concerns):
                version = change.version
                if (told := _event(change, wanted)) is not None:
                    await _send(response, *told)
            await changed.wait()


@asynccontextmanager
async def serving(bookmarks: bool = False, port: int = 0) -> AsyncGenerator[KubeServer]:
    """A server in this event loop."""
    server = KubeServer(bookmarks)
    # Whoever is being watched when it ends is not waited for.
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, HOST, port)
    await site.start()
    server.url = f"http://{HOST}:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def kubeconfig(url: str, user: str = "tests") -> Json:
    """What a client needs to know of the server, as `kubectl` writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        # Any: without one, a client reads all that the host trusts, which takes it a while.
        "clusters": [
            {"name": "fake", "cluster": {"server": url, "certificate-authority": str(CERTIFICATE)}}
        ],
        "users": [{"name": "fake", "user": {"token": user}}],
    }


def _event(change: Change, wanted: Test) -> tuple[str, Json] | None:
    """What a watch is told of a change: leaving its selection is a deletion for it."""
    was = change.before is not None and wanted(change.before)
    now = change.after is not None and wanted(change.after)
    if now and change.after is not None:
        return ("MODIFIED" if was else "ADDED"), change.after
    if was and change.before is not None:
        gone = change.before if change.after is None else change.after
        return "DELETED", gone
    return None


async def _send(response: web.StreamResponse, kind: str, item: Json) -> None:
    await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError(f"cut at {time.time()}")


def _check_version(key: Key, before: Json, wanted: str | None) -> None:
    if wanted and wanted != before["metadata"]["resourceVersion"]:
        raise ApiError(
            409, "Conflict", f'Operation cannot be fulfilled on {key.resource} "{key.name}": the'
            " object has been modified; please apply your changes to the latest version and try"
            " again"
        )  # fmt: skip


def _check_times(key: Key, item: Json) -> None:
    """A MicroTime without a fraction is none."""
    renewed = str(part(item, "spec").get("renewTime", ".")) if key.resource == "leases" else "."
    if "." not in renewed:
        raise ApiError(400, "BadRequest", f'cannot parse "{renewed}" as a MicroTime')


def _scale(item: Json) -> Json:
    metadata = {k: item["metadata"][k] for k in ("name", "namespace", "resourceVersion")}
    replicas = item["spec"].get("replicas", 1)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": replicas},
    }


def _success() -> Json:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _version(prefix: str) -> str:
    return prefix.removeprefix("/apis/").removeprefix("/api/")
