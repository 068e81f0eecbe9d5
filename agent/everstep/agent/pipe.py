"""Messages with file descriptors between an agent and its pre-warmed process.

A stream socket pair; each message is 4 bytes of length and a JSON object. The descriptors travel
beside the length. Unlike other channels it has no size limit: both ends are the same program's, and
an environment may be large.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
_MAX_FDS = 2


def send(sock: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a message; the descriptors stay the caller's as well.

    Raises:
        OSError: The other end is gone.
    """
    data = json.dumps(message).encode()
    socket.send_fds(sock, [_LENGTH.pack(len(data))], fds)
    sock.sendall(data)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for a message and the descriptors beside it, which a program started here won't inherit.

    Raises:
        EOFError: The other end is gone.
        OSError: The socket is of no use any more.
    """
    prefix, fds, _flags, _address = socket.recv_fds(
        sock, _LENGTH.size, _MAX_FDS, socket.MSG_CMSG_CLOEXEC
    )
    prefix += _exactly(sock, _LENGTH.size - len(prefix)) if prefix else b""
    if not prefix:
        raise EOFError
    return json.loads(_exactly(sock, _LENGTH.unpack(prefix)[0])), fds


def _exactly(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        chunk = sock.recv(num_bytes - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
