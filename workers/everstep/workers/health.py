"""Whether a process lives and serves, told over HTTP to whoever runs it: `/healthz`, `/readyz`.

Off unless a port is given. Says one line that holds nothing of the job, so it asks for no token:
the kubelet has none. Both are answered in the event loop that does the work, so a loop that hangs
does not pass for alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from http import HTTPStatus

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from everstep.core.errors import InputError

logger = logging.getLogger(__name__)

Ready = Callable[[], Awaitable[str]]
"""Empty when the process serves; else a line that says why not."""

REQUEST_PATIENCE_S = 5.0
REQUEST_BYTES = 8192
SERVER_PATIENCE = timedelta(seconds=2)
"""Shorter than a probe waits, so that what it gets is a reason."""


async def _starting() -> str:
    return "starting"


class Health:
    """Answers probes of one process.

    Not ready before `ready` is set, and alive as long as its event loop runs.
    """

    def __init__(self) -> None:
        self.ready: Ready = _starting
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int | None) -> int | None:
        """Answer from now on, until the process ends.

        Args:
            host: Address to listen on.
            port: Port, 0 for any that is free; None listens nowhere.

        Returns:
            The port; None for none.

        Raises:
            InputError: The address cannot be listened on.
        """
        if port is None:
            return None
        try:
            server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES)
        except OSError as error:
            raise InputError(
                f"EVERSTEP_HEALTH_PORT {port}", str(error), "Give each process a port of its own."
            ) from error
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reasons = (
            OSError,
            TimeoutError,
            ValueError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        )
        try:
            async with asyncio.timeout(REQUEST_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, said = await self._answer(head)
                writer.write(_response(status, said))
                await writer.drain()
        except reasons as error:
            logger.debug("a probe got no answer: %r", error)
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, head: bytes) -> tuple[HTTPStatus, str]:
        method, path, *_ = head.split(b"\r\n", 1)[0].split(b" ")
        if method != b"GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, "GET only"
        if path == b"/healthz":
            return HTTPStatus.OK, "alive"
        if path == b"/readyz":
            why_not = await self.ready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK
            return status, why_not or "ready"
        return HTTPStatus.NOT_FOUND, "/healthz or /readyz"


def _response(status: HTTPStatus, said: str) -> bytes:
    body = f"{said}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def polling(client: Client, worker: Worker) -> Ready:
    """Ready is who polls its task queue on a Temporal server that answers."""

    async def ready() -> str:
        if not worker.is_running:
            return "does not poll its task queue"
        try:
            if await client.service_client.check_health(timeout=SERVER_PATIENCE):
                return ""
        except RPCError as error:
            logger.info("the Temporal server does not answer: %s", error)
        return "the Temporal server does not answer"

    return ready
