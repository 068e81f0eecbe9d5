"""Which network interfaces and InfiniBand ports matter to the job.

What nobody trains over raises nothing: a management NIC that goes down is no fault of the job.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_REFUSED = 0x200
"""Flag of a route that says that there is none (RTF_REJECT)."""


def nccl_matches(pattern: str, name: str) -> bool:
    """Whether NCCL would use `name` under a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA.

    `^` in front excludes, `=` asks for whole names, otherwise a prefix is enough; HCAs may carry a
    port, `mlx5_0:1`. An empty pattern matches nothing: it says nothing.
    """
    if not pattern:
        return False
    exclude = pattern.startswith("^")
    rest = pattern.removeprefix("^")
    exact = rest.startswith("=")
    words = [word for word in rest.removeprefix("=").split(",") if word]

    def hit(word: str) -> bool:
        if ":" in name and ":" not in word:
            whole = name.split(":")[0]
            return whole == word if exact else whole.startswith(word)
        return name == word if exact or ":" in word else name.startswith(word)

    return any(hit(word) for word in words) != exclude


@dataclass(frozen=True, slots=True)
class Route:
    """One route."""

    interface: str
    network: ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_routes(text: str) -> list[Route]:
    """Read /proc/net/route; lines that are not routes are left out."""
    routes: list[Route] = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8:
            continue
        try:
            destination, mask = (_address(fields[column]) for column in (1, 7))
            network = ipaddress.IPv4Network(f"{destination}/{mask}")
        except ValueError:
            continue
        routes.append(Route(fields[0], network))
    return routes


def parse_routes_6(text: str) -> list[Route]:
    """Read /proc/net/ipv6_route; lines that are not usable routes are left out."""
    routes: list[Route] = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) != 10 or fields[9] == "lo":
            continue
        try:
            address, length = ipaddress.IPv6Address(bytes.fromhex(fields[0])), int(fields[1], 16)
            refused = int(fields[8], 16) & _REFUSED
            network = ipaddress.IPv6Network((address, length))
        except ValueError:
            continue
        if not refused:
            routes.append(Route(fields[9], network))
    return routes


def route_to(address: str, routes: Iterable[Route]) -> str | None:
    """The interface over which an address is reached; None for this host or no route."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    if wanted.is_loopback:
        return None
    fitting = [route for route in routes if wanted in route.network]
    return max(fitting, key=lambda r: r.network.prefixlen).interface if fitting else None


def interfaces_that_matter(
    present: Sequence[str], given: Sequence[str], nccl_pattern: str, routed: Iterable[str]
) -> tuple[str, ...]:
    """Interfaces to watch, sorted: those given, else those NCCL is told, else those routes use.

    Args:
        present: Interfaces that this machine has.
        given: Names that a person gave; watched even when they are not there.
        nccl_pattern: Value of NCCL_SOCKET_IFNAME, or empty.
        routed: Interfaces over which the job's other machines are reached.
    """
    if given:
        return tuple(sorted(name for name in given if ":" not in name and "/" not in name))
    if nccl_pattern:
        return tuple(sorted(n for n in present if n != "lo" and nccl_matches(nccl_pattern, n)))
    return tuple(sorted(set(routed) - {"lo"}))


def ports_that_matter(
    active: Iterable[str], present: Iterable[str], nccl_pattern: str
) -> tuple[str, ...]:
    """InfiniBand ports (`mlx5_0:1`) to watch, sorted: what NCCL is told, else what is active now.

    A port without a cable is down on healthy machines, so that only a change tells.
    """
    if nccl_pattern:
        return tuple(sorted(port for port in present if nccl_matches(nccl_pattern, port)))
    return tuple(sorted(active))


def _address(little_endian_hex: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(bytes.fromhex(little_endian_hex)[::-1])
