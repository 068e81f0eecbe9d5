"""Network interfaces and InfiniBand ports: what they say now, and when to look again."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.core.errors import UnobservableError
from everstep.core.senses.interfaces import (
    interfaces_that_matter,
    parse_routes,
    parse_routes_6,
    ports_that_matter,
    route_to,
)
from everstep.core.senses.network import PortState

RTMGRP_LINK = 1
MESSAGE_BYTES = 65_536

_NET_ERRORS = ("rx_errors", "tx_errors", "rx_crc_errors")
_NET_LOST = ("rx_missed_errors", "rx_fifo_errors", "tx_dropped")
_NET_PACKETS = ("rx_packets", "tx_packets")
_IB_ERRORS = (
    "symbol_error",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_IB_LOST = ("port_xmit_discards",)
_IB_PACKETS = ("port_rcv_packets", "port_xmit_packets")


@dataclass(frozen=True, slots=True)
class Relevance:
    """What decides which interfaces and ports matter.

    Attributes:
        given: Names that a person gave; they win.
        nccl_socket_ifname: Value of NCCL_SOCKET_IFNAME of the ranks, or empty.
        nccl_ib_hca: Value of NCCL_IB_HCA of the ranks, or empty.
        addresses: Addresses of the job's machines, this one's included.
    """

    given: Sequence[str] = ()
    nccl_socket_ifname: str = ""
    nccl_ib_hca: str = ""
    addresses: Iterable[str] = ()


class LinkProbe:
    """Reads the state of the ports that matter.

    Args:
        relevance: What decides which ones.
        sys: Where sysfs is mounted.
        proc: Where procfs is mounted.
    """

    def __init__(
        self, relevance: Relevance, sys: Path = Path("/sys"), proc: Path = Path("/proc")
    ) -> None:
        self._net = sys / "class/net"
        self._infiniband = sys / "class/infiniband"
        self._proc = proc
        self.interfaces, self.ports = self._choose(relevance)
        self.unclear = tuple(sorted(set(self._present()) - set(self.ports)))
        """InfiniBand ports of which nobody knows whether they matter; they are not watched."""

    def look(self) -> dict[str, PortState | None]:
        """What each port that matters says now; None for one that is not there."""
        states: dict[str, PortState | None] = {n: self._interface(n) for n in self.interfaces}
        states.update({port: self._port(port) for port in self.ports})
        return states

    def _choose(self, relevance: Relevance) -> tuple[tuple[str, ...], tuple[str, ...]]:
        routes = [
            *parse_routes(_text(self._proc / "net/route")),
            *parse_routes_6(_text(self._proc / "net/ipv6_route")),
        ]
        routed = [route_to(address, routes) for address in relevance.addresses]
        interfaces = interfaces_that_matter(
            _names(self._net),
            relevance.given,
            relevance.nccl_socket_ifname,
            [name for name in routed if name is not None],
        )
        present = self._present()
        active = [p for p in present if (state := self._port(p)) is not None and state.up]
        given = tuple(sorted(name for name in relevance.given if ":" in name))
        ports = given or ports_that_matter(active, present, relevance.nccl_ib_hca)
        return interfaces, () if relevance.given and not given else ports

    def _present(self) -> list[str]:
        return [
            f"{device}:{number}"
            for device in _names(self._infiniband)
            for number in _names(self._infiniband / device / "ports")
        ]

    def _interface(self, name: str) -> PortState | None:
        where = self._net / name
        if not where.exists():
            return None
        statistics = where / "statistics"
        return PortState(
            # Reading the carrier of an interface that was switched off is an error.
            up=_number(where / "carrier") == 1,
            downs=_number(where / "carrier_down_count") or 0,
            rate_mbps=_number(where / "speed"),
            errors=_total(statistics, _NET_ERRORS),
            lost=_total(statistics, _NET_LOST),
            packets=_total(statistics, _NET_PACKETS),
        )

    def _port(self, name: str) -> PortState | None:
        device, _, number = name.partition(":")
        where = self._infiniband / device / "ports" / number
        if not where.exists():
            return None
        counters = where / "counters"
        return PortState(
            up="ACTIVE" in _text(where / "state"),
            downs=_number(counters / "link_downed") or 0,
            rate_mbps=_gigabits(_text(where / "rate")),
            errors=_total(counters, _IB_ERRORS),
            lost=_total(counters, _IB_LOST),
            packets=_total(counters, _IB_PACKETS),
        )


class LinkNews:
    """Tells that some link changed, whichever: looking again is as cheap as asking which.

    Raises:
        UnobservableError: The kernel does not tell, with the reason.
    """

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
            )
            self._socket.bind((0, RTMGRP_LINK))
        except OSError as error:
            raise UnobservableError(f"netlink: {error.strerror}") from error

    def fileno(self) -> int:
        """Readable when something changed."""
        return self._socket.fileno()

    def drain(self) -> None:
        """Take in what there is to read; an overrun is news like any other."""
        while True:
            try:
                self._socket.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:  # ENOBUFS: some news were lost, and there is a reason to look
                continue

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    try:
        return int(text)
    except ValueError:
        return None


def _total(folder: Path, names: Iterable[str]) -> int:
    return sum(_number(folder / name) or 0 for name in names)


def _gigabits(rate: str) -> float | None:
    """`400 Gb/sec (4X NDR)` in Mbit/s."""
    try:
        return float(rate.split()[0]) * 1000
    except (IndexError, ValueError):
        return None
