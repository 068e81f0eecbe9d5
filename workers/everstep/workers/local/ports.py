"""TCP ports on this host: free ones, and whether a wanted one is."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from everstep.core.errors import InputError

HOST = "127.0.0.1"
"""Where all of a local run listens."""

LOWEST = 10_000
TRIES = 100
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str) -> int:
    """A port that nobody listens on now, and that no outgoing connection will be given.

    It is bound some time after it was chosen, and again whenever its process is started anew. A
    port of the range from which the kernel serves outgoing connections may be taken by one
    meanwhile.

    Raises:
        InputError: None was found.
    """
    highest = int(EPHEMERAL_RANGE.read_text().split()[0]) - 1
    for _ in range(TRIES):
        port = LOWEST + secrets.randbelow(max(1, highest - LOWEST))
        if is_free(host, port):
            return port
    raise InputError(
        f"ports {LOWEST} to {highest}", "none of them is free", "Stop what listens there."
    )


def wanted_port(host: str, wanted: int | None, option: str, preferred: int | None = None) -> int:
    """The wanted port if one is given, else the preferred one if it is free, else any free one.

    Raises:
        InputError: The wanted port is in use.
    """
    if wanted is None:
        return preferred if preferred and is_free(host, preferred) else free_port(host)
    if not is_free(host, wanted):
        raise InputError(
            option, f"port {wanted} on {host} is in use", f"Give another, or leave {option} out."
        )
    return wanted


def is_free(host: str, port: int) -> bool:
    """Whether a listener could bind the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
