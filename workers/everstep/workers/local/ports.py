"""TCP ports on this host: free ones, and whether a wanted one is."""

from __future__ import annotations

import socket

from everstep.core.errors import InputError


def free_port(host: str) -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


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
