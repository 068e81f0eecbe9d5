"""Requests to an API server, and its answers as JSON: the only module that imports `kubernetes`.

The library brings what must not be written again: kubeconfig files, the service account of a pod
and its rotating token, TLS. Its models are left aside: they refuse fields that they do not know,
drop a `false` on the way, and parsing a job's pods into them would hold the event loop up.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import OpenApiException
from kubernetes.aio.config import ConfigException

from everstep.core.errors import EverstepError, InputError, PermanentError, TransientError
from everstep.core.kubernetes.objects import entries

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

TIMEOUT_S = 10.0
"""For one answer; an API server that takes longer is as good as away."""

CONNECT_S = 3.0
MAX_CONNECTIONS = 16
MAX_SAID_CHARS = 300


UNREADABLE = (
    ConfigException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    yaml.YAMLError,
)
"""What the library raises at a kubeconfig file that it does not understand."""


class NotThereError(PermanentError):
    """404: no object of that name."""


class ChangedError(TransientError):
    """409: the object is not, or not any more, as the request takes it to be."""


class InvalidError(PermanentError):
    """422: what would come of it is no such object; to a patch that names a uid: it is another."""


class ExpiredError(TransientError):
    """410: what was to be watched from is forgotten."""


class BudgetError(PermanentError):
    """429 to an eviction: a PodDisruptionBudget stands against it for as long as it does."""


class BusyError(TransientError):
    """429 or 503: later.

    Args:
        what: One sentence.
        retry_after_s: When to come again by the server's own word, or None.
    """

    def __init__(self, what: str, retry_after_s: float | None = None) -> None:
        super().__init__(what, retry_after_s)
        self.what = what
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.what


class Connection:
    """One API server.

    Args:
        api: The library's client, configured.
    """

    def __init__(self, api: ApiClient) -> None:
        # Parts of the library have no annotations; what comes of it is typed here.
        self._api: Any = api

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Read an object or a list.

        Raises:
            NotThereError, ExpiredError, BusyError, TransientError, PermanentError: By what a
                caller can do; see `error_of`.
        """
        return await self._ask("GET", path, query=query)

    async def post(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        """Create something; raises as `get` does, and ChangedError, BudgetError."""
        return await self._ask("POST", path, body, query)

    async def patch(
        self, path: str, body: Json, kind: str = MERGE, query: Mapping[str, str] | None = None
    ) -> Json:
        """Change something; raises as `get` does, and ChangedError."""
        return await self._ask("PATCH", path, body, query, kind)

    async def delete(self, path: str, body: Json) -> Json:
        """Delete something; raises as `get` does, and ChangedError."""
        return await self._ask("DELETE", path, body)

    async def watch(
        self, path: str, query: Mapping[str, str], silence_s: float
    ) -> AsyncGenerator[Json]:
        """Events of a watch, until the server ends it.

        Args:
            path: What to watch.
            query: With what selection, from where, for how long.
            silence_s: How long nothing may come before the connection counts as dead.

        Raises:
            EverstepError: As `get` does.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)
        response = await self._send("GET", path, {**query, "watch": "true"}, None, "", limits)
        try:
            if response.status >= 400:
                raise error_of(response.status, await self._body(response, path))
            async for line in response.content:
                event: Json = json.loads(line)
                if event["type"] == "ERROR":
                    raise error_of(int(event["object"].get("code", 500)), event["object"])
                yield event
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TransientError(f"the watch of {path} was cut off: {_text(error)}") from error
        finally:
            response.close()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        limits = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_S)
        response = await self._send(method, path, query or {}, body, content_type, limits)
        answer = await self._body(response, path)
        if response.status >= 400:
            raise error_of(response.status, answer, response.headers.get("Retry-After"))
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        try:
            method, url, headers, sent, _ = await self._api.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._api.call_api(method, url, headers, sent, _request_timeout=limits)
            response: aiohttp.ClientResponse = answer.response
            return response
        except (aiohttp.ClientError, OSError, OpenApiException, ConfigException) as error:
            # A token file may be empty for a moment while it is rotated.
            raise TransientError(f"no answer to {method} {path}: {_text(error)}") from error

    async def _body(self, response: aiohttp.ClientResponse, path: str) -> Json:
        try:
            return dict(json.loads(await response.read() or b"{}"))
        except (aiohttp.ClientError, OSError) as error:
            raise TransientError(f"the answer of {path} was cut off: {_text(error)}") from error
        except ValueError as error:
            if response.status >= 400:
                # A proxy in between answers in words of its own.
                return {"message": str(response.reason)}
            raise TransientError(f"the answer of {path} is no JSON") from error


@asynccontextmanager
async def connected(kubeconfig: str | None) -> AsyncGenerator[Connection]:
    """A connection to the server that a kubeconfig file names, else to this pod's own.

    Raises:
        InputError: There is neither, or the file cannot be read.
    """
    configuration: Any = Configuration()
    try:
        _look_for(kubeconfig)
        await _load(configuration, kubeconfig)
        _look_at(configuration.host)
        configuration.connection_pool_maxsize = MAX_CONNECTIONS
        # Reads certificates.
        client = ApiClient(configuration)
    except UNREADABLE as error:
        where = kubeconfig or "this process runs in no pod, and ~/.kube/config"
        said = _text(error).replace("\n", " ")
        if isinstance(error, TypeError | KeyError | AttributeError):
            said = "it is not written as a kubeconfig is"
        raise InputError(
            "KUBECONFIG", f"{where} cannot be read: {said}", "Name a kubeconfig file."
        ) from error
    async with client as api:
        yield Connection(api)


def _look_for(kubeconfig: str | None) -> None:
    """The library takes several files, as kubectl does, and of absent ones says nothing clear."""
    if kubeconfig and not any(Path(file).is_file() for file in kubeconfig.split(os.pathsep)):
        raise FileNotFoundError("there is no such file")


def _look_at(server: str) -> None:
    if not server.startswith(("http://", "https://")):
        raise ValueError(f"its server is no address: {server!r}")


async def _load(configuration: Any, kubeconfig: str | None) -> None:
    library: Any = config
    if kubeconfig:
        await library.load_kube_config(kubeconfig, client_configuration=configuration)
        return
    try:
        library.load_incluster_config(client_configuration=configuration)
    except ConfigException:
        await library.load_kube_config(client_configuration=configuration)


def error_of(code: int, status: Json, retry_after: str | None = None) -> EverstepError:
    """What an answer other than success means for whoever asked.

    Args:
        code: HTTP status, or that of an event.
        status: The `Status` object.
        retry_after: The header of that name, if there was one.
    """
    said = f"{status.get('reason', code)}: {status.get('message', '')}"[:MAX_SAID_CHARS]
    if code == 404:
        return NotThereError(said)
    if code == 409:
        return ChangedError(said)
    if code == 422:
        return InvalidError(said)
    if code == 410:
        return ExpiredError(said)
    if code == 429:
        causes = [
            c for c in entries(status, "details", "causes") if "Budget" in c.get("reason", "")
        ]
        if causes and retry_after is None:
            return BudgetError(str(causes[0].get("message", said)))
        return BusyError(said, _seconds(retry_after))
    if code == 503:
        return BusyError(said, _seconds(retry_after))
    if code == 500 and "more than one PodDisruptionBudget" in said:
        return BudgetError(said)
    if code == 401 or code == 408 or code >= 500:
        return TransientError(said)
    return PermanentError(said)


def _seconds(header: str | None) -> float | None:
    return float(header) if header and header.isdigit() else None


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
