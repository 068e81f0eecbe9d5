"""What an agent and a child that works with the storage tier for it say to each other.

Over a socket pair of kind SEQPACKET: each packet is a JSON object, some with a descriptor beside
it. The agent sends one order and as many `shard` packets as it says; the child answers with any
number of `phase` packets and one `done` or `failed`.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any, cast

PACKET_BYTES = 64 * 1024


def send(sock: socket.socket, content: Mapping[str, Any], fd: int | None = None) -> None:
    """Send one packet.

    Raises:
        OSError: The other side is gone.
    """
    data = json.dumps(content).encode()
    if fd is None:
        sock.sendall(data)
    else:
        socket.send_fds(sock, [data], [fd])


def receive(sock: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """Wait for one packet, and the descriptor beside it; None when the other side is gone.

    Raises:
        OSError: Nothing came in the socket's time.
        ValueError: It is no packet of ours.
    """
    data, fds, _, _ = socket.recv_fds(sock, PACKET_BYTES, 1)
    for extra in fds[1:]:
        os.close(extra)
    if not data:
        return None
    return cast("dict[str, Any]", json.loads(data)), fds[0] if fds else None
