"""Connections between processes of one job, authenticated; the form of the bytes is `core.wire`'s.

`Link` blocks and is for threads that move shards; `AsyncLink` is for event loops that exchange
small messages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from everstep.core import wire
from everstep.core.errors import PermanentError, TransientError
from everstep.core.faultpoint import reached

HANDSHAKE_TIMEOUT_S = 5.0
"""For the whole handshake, however slowly the other side drips its bytes."""

IO_TIMEOUT_S = 30.0
"""For any single wait on an established blocking link."""

CHUNK_BYTES = 4 * 1024 * 1024
"""As much at a time costs no more than a plain copy; a quarter of it, a third more."""

PACED_CHUNK_BYTES = 256 * 1024
"""At a limited rate, so that what others send comes in between."""

_LOWER_EFFORT = 0x20
"""DSCP class selector 1, in the place that it has in IP_TOS."""

logger = logging.getLogger(__name__)


class Pace:
    """A limit that several connections share.

    Args:
        bytes_per_s: How much all of them may send together, > 0.
    """

    def __init__(self, bytes_per_s: float) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"{bytes_per_s} B/s is no pace")
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0
        self._lock = threading.Lock()

    def wait(self, num_bytes: int) -> None:
        """Wait until that many bytes may be sent."""
        with self._lock:
            now_s = time.monotonic()
            begin_s = max(now_s, self._free_at_s)
            self._free_at_s = begin_s + num_bytes / self._bytes_per_s
        time.sleep(begin_s - now_s)


class Link:
    """A blocking connection whose other side has proved that it knows the job's secret.

    Args:
        sock: The connection.
        peer: The other side's address, for messages.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._sock = sock
        self.peer = peer

    def send(self, header: Mapping[str, Any]) -> None:
        """Send one frame's header.

        Raises:
            OSError: The connection broke, or the other side takes nothing any more.
        """
        self._sock.sendall(wire.encode_frame(header))

    def send_payload(self, payload: memoryview, pace: Pace | None = None) -> None:
        """Send the raw bytes that the last header announced, no faster than `pace` allows.

        Raises:
            OSError: As for `send`.
        """
        size_bytes = CHUNK_BYTES if pace is None else PACED_CHUNK_BYTES
        for start in range(0, len(payload), size_bytes):
            chunk = payload[start : start + size_bytes]
            if pace is not None:
                pace.wait(len(chunk))
            self._sock.sendall(chunk)
            reached("mid_send")

    def give_way(self) -> None:
        """Let the network serve all other traffic first, where it tells classes apart."""
        try:
            self._sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _LOWER_EFFORT)
        except OSError as error:
            logger.debug("no traffic class for %s: %s", self.peer, error)

    def receive(self, limit_bytes: int = wire.HEADER_LIMIT_BYTES) -> wire.Header:
        """Wait for one frame's header.

        Raises:
            EOFError: The other side closed the connection.
            OSError: The connection broke, or nothing came in time.
            PermanentError: What came is not a frame.
        """
        prefix = self._exactly(wire.PREFIX_BYTES)
        return wire.decode_header(self._exactly(wire.header_length(prefix, limit_bytes)))

    def receive_some(self, place: memoryview) -> int:
        """Wait for payload, at most a chunk, and write it straight into `place`.

        Returns:
            Number of bytes, > 0 unless `place` is empty.

        Raises:
            EOFError, OSError: As for `receive`.
        """
        count = self._sock.recv_into(place[:CHUNK_BYTES])
        if count == 0 and len(place) > 0:
            raise EOFError(f"{self.peer} closed the connection")
        return count

    def close(self) -> None:
        """End the connection, also for a thread that waits on it."""
        _shut(self._sock)

    def _exactly(self, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        view = memoryview(data)
        while view:
            view = view[self.receive_some(view) :]
        return bytes(data)


def connect(
    host: str, port: int, secret: bytes, job: str, timeout_s: float = HANDSHAKE_TIMEOUT_S
) -> Link:
    """Open a connection, prove the secret and have it proved.

    Args:
        host: Where to.
        port: Where to.
        secret: The job's secret.
        job: The job's name.
        timeout_s: For connecting and handshake together, > 0.

    Raises:
        TransientError: Nobody there, or not in time.
        PermanentError: The other side is not of this job, or takes us for a stranger.
    """
    try:
        sock = socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        raise TransientError(f"cannot reach {host}:{port}: {error}") from error
    greeter = wire.ClientHandshake(secret, job, secrets.token_bytes(wire.NONCE_BYTES))
    try:
        link = _DeadlineLink(sock, f"{host}:{port}", timeout_s)
        link.send(greeter.greeting())
        link.send(greeter.prove(link.receive(wire.GREETING_LIMIT_BYTES)))
        greeter.finish(link.receive(wire.GREETING_LIMIT_BYTES))
    except (OSError, EOFError) as error:
        _shut(sock)
        raise TransientError(f"no handshake with {host}:{port}: {error}") from error
    except PermanentError:
        _shut(sock)
        raise
    return _established(sock, link.peer)


def accept(
    sock: socket.socket,
    peer: str,
    secret: bytes,
    job: str,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Link:
    """Let a peer that connected prove the secret; close the connection when it cannot.

    Raises:
        TransientError: It went away or was too slow.
        PermanentError: It is a stranger.
    """
    doorman = wire.ServerHandshake(secret, job, secrets.token_bytes(wire.NONCE_BYTES))
    link = _DeadlineLink(sock, peer, timeout_s)
    try:
        try:
            link.send(doorman.challenge(link.receive(wire.GREETING_LIMIT_BYTES)))
            link.send(doorman.admit(link.receive(wire.GREETING_LIMIT_BYTES)))
        except PermanentError as error:
            link.send(wire.refusal(str(error)))
            raise
    except (OSError, EOFError) as error:
        _shut(sock)
        raise TransientError(f"the peer left during the handshake: {error}") from error
    except PermanentError:
        _shut(sock)
        raise
    return _established(sock, peer)


class _DeadlineLink(Link):
    """A link on which all waiting together has a limit."""

    def __init__(self, sock: socket.socket, peer: str, timeout_s: float) -> None:
        super().__init__(sock, peer)
        self._deadline_s = time.monotonic() + timeout_s
        sock.settimeout(timeout_s)

    def receive_some(self, place: memoryview) -> int:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("too slow")
        self._sock.settimeout(left_s)
        return super().receive_some(place)


def _established(sock: socket.socket, peer: str) -> Link:
    # Python's own time limit would ask the kernel before every piece whether there is one.
    sock.settimeout(None)
    limit = struct.pack("@ll", int(IO_TIMEOUT_S), 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Link(sock, peer)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was closed from the other side
    finally:
        sock.close()


class AsyncLink:
    """The same for an event loop, for frames without payload.

    Args:
        reader: Stream from the other side.
        writer: Stream to it.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, header: Mapping[str, Any]) -> None:
        """Send one message; waits while the other side is slow.

        Raises:
            OSError: The connection broke.
        """
        self._writer.write(wire.encode_frame(header))
        await self._writer.drain()

    async def receive(self, limit_bytes: int = wire.HEADER_LIMIT_BYTES) -> wire.Header:
        """Wait for one message, however long it takes.

        Raises:
            asyncio.IncompleteReadError: The other side closed the connection.
            OSError: The connection broke.
            PermanentError: What came is not a message.
        """
        prefix = await self._reader.readexactly(wire.PREFIX_BYTES)
        length = wire.header_length(prefix, limit_bytes)
        header = wire.decode_header(await self._reader.readexactly(length))
        if wire.number(header, "payload_bytes", default=0):
            raise PermanentError("a payload where none belongs")
        return header

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


async def open_link(
    host: str, port: int, secret: bytes, job: str, timeout_s: float = HANDSHAKE_TIMEOUT_S
) -> AsyncLink:
    """`connect` for an event loop.

    Raises:
        TransientError: Nobody there, or not in time.
        PermanentError: The other side is not of this job, or takes us for a stranger.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            link = AsyncLink(reader, writer)
            try:
                await _greet(link, secret, job)
            except BaseException:
                link.close()
                raise
    except (OSError, EOFError) as error:
        raise TransientError(f"cannot link to {host}:{port}: {error}") from error
    return link


async def serve_link(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    job: str,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> AsyncLink:
    """`accept` for the streams that `asyncio.start_server` hands out.

    Raises:
        TransientError: The peer went away or was too slow.
        PermanentError: It is a stranger.
    """
    link = AsyncLink(reader, writer)
    doorman = wire.ServerHandshake(secret, job, secrets.token_bytes(wire.NONCE_BYTES))
    try:
        async with asyncio.timeout(timeout_s):
            try:
                await link.send(doorman.challenge(await link.receive(wire.GREETING_LIMIT_BYTES)))
                await link.send(doorman.admit(await link.receive(wire.GREETING_LIMIT_BYTES)))
            except PermanentError as error:
                await link.send(wire.refusal(str(error)))
                raise
    except (OSError, EOFError) as error:
        link.close()
        raise TransientError(f"the peer left during the handshake: {error}") from error
    except BaseException:
        link.close()
        raise
    return link


async def _greet(link: AsyncLink, secret: bytes, job: str) -> None:
    greeter = wire.ClientHandshake(secret, job, secrets.token_bytes(wire.NONCE_BYTES))
    await link.send(greeter.greeting())
    await link.send(greeter.prove(await link.receive(wire.GREETING_LIMIT_BYTES)))
    greeter.finish(await link.receive(wire.GREETING_LIMIT_BYTES))
