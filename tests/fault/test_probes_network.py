"""Real links in a network namespace: brought down, flapped, and one that nobody trains over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.probes.links import LinkProbe, Relevance

PATIENCE_S = 20.0


class Namespace:
    """A network namespace with a fabric port, `fab0`, and a management port, `mgmt0`.

    Their other ends, `fab1` and `mgmt1`, are in it, too; bringing one down takes the carrier away.
    """

    def __init__(self) -> None:
        self.name = f"es{uuid.uuid4().hex[:8]}"
        self._processes: list[subprocess.Popen[str]] = []

    def make(self) -> None:
        """Create it.

        Raises:
            subprocess.CalledProcessError: This is not permitted here.
        """
        ip("netns", "add", self.name)
        for kind, address in (("fab", "10.9.0.1/24"), ("mgmt", "10.8.0.1/24")):
            self.ip("link", "add", f"{kind}0", "type", "veth", "peer", "name", f"{kind}1")
            self.ip("address", "add", address, "dev", f"{kind}0")
            self.ip("link", "set", f"{kind}0", "up")
            self.ip("link", "set", f"{kind}1", "up")

    def ip(self, *words: str) -> None:
        ip("-n", self.name, *words)

    def watch(self, seconds: float, *words: str) -> subprocess.Popen[str]:
        """Start a monitor in it; `ip netns exec` gives it the namespace's own /sys."""
        command = [sys.executable, "-m", "tests.fault.monitor_program", str(seconds), *words]
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._processes.append(process)
        return process

    def remove(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        ip("netns", "delete", self.name)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if shutil.which("ip") is None:
        pytest.skip("no iproute2")
    made = Namespace()
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr!r}")
    yield made
    made.remove()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next thing that the monitor tells; it ends by itself, so this never waits for ever."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the monitor ended"
    message: dict[str, Any] = json.loads(line)
    return message


def rest(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The alerts up to the monitor's end; it must have cost little."""
    alerts: list[dict[str, Any]] = []
    while (message := told(process))["type"] != "end":
        alerts.append(message)
    assert message["core_ratio"] < 0.02, message
    assert message["memory_mib"] < 150, message
    return alerts


def test_a_port_that_goes_down_is_one_alert_within_a_second(namespace: Namespace) -> None:
    watching = namespace.watch(6.0, "--events-only")
    assert told(watching)["type"] == "ready"
    down_s = time.time()
    namespace.ip("link", "set", "fab1", "down")
    alert = told(watching)
    assert (alert["subject"], alert["symptom"]) == ("fab0", "infiniband_error")
    assert alert["confident"] is False
    assert alert["at_s"] - down_s < 1.0
    assert rest(watching) == []


def test_flaps_that_are_over_at_once_are_one_alert_within_a_second(namespace: Namespace) -> None:
    watching = namespace.watch(6.0, "--events-only")
    assert told(watching)["type"] == "ready"
    flapped_s = time.time()
    for _ in range(5):
        namespace.ip("link", "set", "fab1", "down")
        namespace.ip("link", "set", "fab1", "up")
    alert = told(watching)
    assert alert["subject"] == "fab0"
    assert alert["at_s"] - flapped_s < 1.0
    assert rest(watching) == []


def test_a_management_port_raises_nothing(namespace: Namespace) -> None:
    watching = namespace.watch(5.0)
    assert told(watching)["type"] == "ready"
    namespace.ip("link", "set", "mgmt1", "down")
    namespace.ip("link", "set", "mgmt1", "up")
    namespace.ip("link", "set", "mgmt0", "down")
    assert rest(watching) == []


def test_a_port_that_was_given_matters_even_if_no_route_uses_it(namespace: Namespace) -> None:
    watching = namespace.watch(5.0, "mgmt0")
    assert told(watching)["type"] == "ready"
    namespace.ip("link", "set", "fab1", "down")
    namespace.ip("link", "set", "mgmt0", "down")
    assert [alert["subject"] for alert in rest(watching)] == ["mgmt0"]


def test_a_port_that_is_removed_is_an_alert(namespace: Namespace) -> None:
    watching = namespace.watch(5.0)
    assert told(watching)["type"] == "ready"
    namespace.ip("link", "delete", "fab0")
    assert [alert["subject"] for alert in rest(watching)] == ["fab0"]


def infiniband(folder: Path, device: str, state: str, **counters: int) -> None:
    """Write one InfiniBand port as sysfs shows it."""
    port = folder / "class/infiniband" / device / "ports/1"
    (port / "counters").mkdir(parents=True, exist_ok=True)
    (port / "state").write_text(f"{state}\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    for name, value in counters.items():
        (port / "counters" / name).write_text(f"{value}\n")


def test_infiniband_ports_are_read_and_unused_ones_left_out(tmp_path: Path) -> None:
    infiniband(tmp_path, "mlx5_0", "4: ACTIVE", link_downed=2, symbol_error=7, port_rcv_packets=9)
    infiniband(tmp_path, "mlx5_1", "1: DOWN")
    probe = LinkProbe(Relevance(), sys=tmp_path, proc=tmp_path)
    assert (probe.ports, probe.unclear) == (("mlx5_0:1",), ("mlx5_1:1",))
    state = probe.look()["mlx5_0:1"]
    assert state is not None
    assert (state.up, state.downs, state.rate_mbps) == (True, 2, 400_000.0)
    assert (state.errors, state.packets) == (7, 9)
    infiniband(tmp_path, "mlx5_0", "1: DOWN", link_downed=3)
    state = probe.look()["mlx5_0:1"]
    assert state is not None
    assert (state.up, state.downs) == (False, 3)


def test_nccl_settings_choose_among_infiniband_ports(tmp_path: Path) -> None:
    infiniband(tmp_path, "mlx5_0", "4: ACTIVE")
    infiniband(tmp_path, "mlx5_1", "1: DOWN")
    probe = LinkProbe(Relevance(nccl_ib_hca="=mlx5_1"), sys=tmp_path, proc=tmp_path)
    assert probe.ports == ("mlx5_1:1",)
