"""What controllers that are to be killed reach their server by: it tells which queue is whose."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator

CHUNK_BYTES = 1 << 16
LONGEST_NAME_BYTES = 128
"""Of a queue; one may be cut in two by a chunk's end."""


class Wire:
    """Passes bytes on both ways, and notes the names of queues at which a process polls alone.

    A controller's own queue, where the server puts the tasks of workflows that it remembers, is
    named after its identity and 32 hexadecimal digits, and told to nobody but the server.

    Args:
        target: Address of the server, `HOST:PORT`.
    """

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._queues: dict[str, str] = {}
        self.address = ""

    def queue_of(self, identity: str) -> str | None:
        """The queue of the process that calls itself so, or None if it has not polled yet."""
        return self._queues.get(identity)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Listen at `address` until the end."""
        server = await asyncio.start_server(self._serve, self._host, 0)
        self.address = f"{self._host}:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(self._host, self._port)
        await asyncio.gather(self._pass_on(reader, ours, True), self._pass_on(theirs, writer))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: bool = False
    ) -> None:
        before = b""
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(CHUNK_BYTES):
                if heard:
                    self._hear(before + chunk)
                    before = chunk[-LONGEST_NAME_BYTES:]
                writer.write(chunk)
                await writer.drain()
        writer.close()

    def _hear(self, said: bytes) -> None:
        for found in _QUEUE.finditer(said):
            self._queues[found[1].decode()] = found[0].decode()


_QUEUE = re.compile(rb"(controller\d+)-[0-9a-f]{32}")
