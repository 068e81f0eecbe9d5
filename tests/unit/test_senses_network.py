"""Which ports matter, and what their states mean over time."""

from __future__ import annotations

import pytest

from everstep.core.model import Alert
from everstep.core.senses import thresholds
from everstep.core.senses.faults import FaultBook
from everstep.core.senses.inspection import Inspection
from everstep.core.senses.interfaces import (
    interfaces_that_matter,
    nccl_matches,
    parse_routes,
    parse_routes_6,
    ports_that_matter,
    route_to,
)
from everstep.core.senses.network import NetworkJudge, PortState
from everstep.core.senses.switch import shared_switch
from everstep.core.vocabulary import Observer, Symptom, Verdict

ROUTES = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
mgmt0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
mgmt0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
fab0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
nonsense
"""


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("eth", "eth1", True),
        ("=eth", "eth1", False),
        ("=eth1,ib0", "eth1", True),
        ("^docker,lo", "docker0", False),
        ("^docker,lo", "ib0", True),
        ("mlx5_1", "mlx5_1:1", True),
        ("=mlx5_1", "mlx5_10:1", False),
        ("mlx5_1:2", "mlx5_1:1", False),
        ("", "eth1", False),
    ],
)
def test_patterns_mean_what_they_mean_to_nccl(pattern: str, name: str, expected: bool) -> None:
    assert nccl_matches(pattern, name) is expected


def test_the_interface_of_a_route_is_the_most_specific_one() -> None:
    routes = parse_routes(ROUTES)
    assert route_to("10.3.4.5", routes) == "fab0"
    assert route_to("192.168.1.7", routes) == "mgmt0"
    assert route_to("8.8.8.8", routes) == "mgmt0"
    assert route_to("127.0.0.1", routes) is None
    assert route_to("not-an-address", routes) is None


NOWHERE = "0" * 32
ROUTES_6 = f"""\
20010db8{"0" * 24} 20 {NOWHERE} 00 {NOWHERE} 00000400 00000001 00000000 00000001 fab0
{NOWHERE} 00 {NOWHERE} 00 fe80{"0" * 27}1 00000400 00000001 00000000 00000003 mgmt0
{NOWHERE} 00 {NOWHERE} 00 {NOWHERE} ffffffff 00000001 00000000 00200200 lo
fd{"0" * 30} 08 {NOWHERE} 00 {NOWHERE} 00000400 00000001 00000000 00000200 refused
nonsense
"""


def test_routes_of_the_newer_protocol_count_too() -> None:
    routes = [*parse_routes(ROUTES), *parse_routes_6(ROUTES_6)]
    assert route_to("2001:db8::7", routes) == "fab0"
    assert route_to("2600::1", routes) == "mgmt0"
    assert route_to("fd00::1", routes) == "mgmt0"
    assert route_to("::1", routes) is None
    assert route_to("10.3.4.5", routes) == "fab0"
    assert route_to("2600::1", parse_routes(ROUTES)) is None


def test_what_is_given_wins_over_nccl_and_nccl_over_routes() -> None:
    present = ["lo", "mgmt0", "fab0", "fab1"]
    assert interfaces_that_matter(present, ["x9"], "fab", ["mgmt0"]) == ("x9",)
    assert interfaces_that_matter(present, [], "fab", ["mgmt0"]) == ("fab0", "fab1")
    assert interfaces_that_matter(present, [], "", ["fab0", "lo"]) == ("fab0",)


def test_an_infiniband_port_without_a_cable_does_not_matter() -> None:
    present = ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1"]
    assert ports_that_matter(["mlx5_0:1"], present, "") == ("mlx5_0:1",)
    assert ports_that_matter([], present, "=mlx5_1,mlx5_2") == ("mlx5_1:1", "mlx5_2:1")


class Watched:
    """A machine's ports with the book of faults behind them, in made-up time."""

    def __init__(self) -> None:
        self.judge, self.book = NetworkJudge(), FaultBook()
        self.now_s = 1000.0
        self.alerts: list[tuple[str, bool]] = []

    def see(self, after_s: float = 1.0, **ports: PortState | None) -> list[Inspection]:
        self.now_s += after_s
        found = self.judge.look(ports, self.now_s)
        for inspection in found:
            if self.book.note(inspection, self.now_s):
                self.alerts.append((inspection.subject, inspection.confident))
        self.book.expire(self.now_s)
        return found


UP, DOWN = PortState(up=True, downs=0), PortState(up=False, downs=1)
BACK = PortState(up=True, downs=1)


def test_the_first_network_alert_is_tolerated_and_told_once() -> None:
    seen = Watched()
    seen.see(eth1=UP)
    for _ in range(20):
        seen.see(eth1=DOWN)
    assert seen.alerts == [("eth1", False)]


def test_a_port_that_stays_down_is_its_own_second_alert() -> None:
    seen = Watched()
    seen.see(eth1=UP)
    seen.see(eth1=DOWN)
    seen.see(thresholds.PORT_STAYS_DOWN_S - 1, eth1=DOWN)
    assert seen.alerts == [("eth1", False)]
    for _ in range(10):
        seen.see(eth1=DOWN)
    assert seen.alerts == [("eth1", False), ("eth1", True)]


def test_flaps_between_two_looks_are_seen_and_are_one_alert() -> None:
    seen = Watched()
    seen.see(eth1=UP)
    seen.see(eth1=PortState(up=True, downs=5))
    seen.see(eth1=PortState(up=True, downs=6))
    found = seen.see(eth1=PortState(up=True, downs=9))
    assert seen.alerts == [("eth1", False)]
    assert "went down 9 times" in found[0].detail


def test_a_second_flap_after_settling_is_certain_within_five_minutes_only() -> None:
    soon, late = Watched(), Watched()
    for seen, pause_s in ((soon, 200.0), (late, 400.0)):
        seen.see(eth1=UP)
        seen.see(eth1=BACK)
        for _ in range(int(pause_s / 10)):
            seen.see(10.0, eth1=BACK)
        seen.see(eth1=PortState(up=True, downs=2))
    assert soon.alerts == [("eth1", False), ("eth1", True)]
    assert late.alerts == [("eth1", False), ("eth1", False)]


def test_two_ports_of_one_machine_count_together() -> None:
    seen = Watched()
    seen.see(eth1=UP, eth2=UP)
    seen.see(eth1=DOWN, eth2=UP)
    seen.see(20.0, eth1=BACK, eth2=DOWN)
    assert seen.alerts == [("eth1", False), ("eth2", True)]


def test_a_port_is_healthy_only_after_a_minute_without_trouble() -> None:
    seen = Watched()
    seen.see(eth1=UP)
    seen.see(eth1=DOWN)
    assert seen.see(eth1=BACK)[0].verdict is Verdict.FAULTY
    assert seen.see(thresholds.PORT_CLEAR_S - 1, eth1=BACK)[0].verdict is Verdict.FAULTY
    assert seen.see(2.0, eth1=BACK)[0].verdict is Verdict.HEALTHY
    assert seen.book.standing() == []


def test_a_port_that_disappears_is_down_and_one_never_seen_is_unclear() -> None:
    seen = Watched()
    assert seen.see(eth9=None)[0].verdict is Verdict.UNOBSERVABLE
    seen.see(eth1=UP)
    assert "has disappeared" in seen.see(eth1=None)[0].detail
    assert seen.alerts == [("eth1", False)]


def test_a_slower_link_and_lost_packets_are_suspected() -> None:
    seen = Watched()
    fast = PortState(up=True, downs=0, rate_mbps=400_000, packets=10_000)
    seen.see(ib0=fast)
    slow = PortState(up=True, downs=0, rate_mbps=100_000, packets=20_000, lost=50)
    found = {i.item: i for i in seen.see(ib0=slow)}
    assert "100 Gbit/s, was 400 before" in found["network.rate"].detail
    assert found["network.errors"].verdict is Verdict.FAULTY
    few = PortState(up=True, downs=0, rate_mbps=400_000, packets=30_000, lost=55)
    found = {i.item: i for i in seen.see(60.0, ib0=few)}
    assert found["network.rate"].verdict is Verdict.HEALTHY


def alert(machine: str, at_s: float, symptom: Symptom = Symptom.INFINIBAND_ERROR) -> Alert:
    return Alert(Observer.AGENT, symptom, at_s, "down", machine=machine, subject="eth1")


def test_several_machines_within_a_minute_point_at_their_switch() -> None:
    together = [alert("m2", 100.0), alert("m0", 130.0), alert("m5", 155.0), alert("m2", 159.0)]
    assert shared_switch(together) == ("m0", "m2", "m5")
    assert shared_switch(together[:2]) == ()
    apart = [alert("m0", 0.0), alert("m1", 61.0), alert("m2", 122.0)]
    assert shared_switch(apart) == ()
    assert shared_switch([alert(f"m{i}", 1.0, Symptom.GPU_UNAVAILABLE) for i in range(5)]) == ()
