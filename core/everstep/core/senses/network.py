"""Ports over time: down, flapping, slow, losing packets; and the rule of the second alert.

Paper: section 4.1 tolerates the first network alert of a machine and evicts at the second within
five minutes. Departs from it in what counts as one: all flaps until the port has settled are one
alert, and a port that stays down is its own second one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from everstep.core.senses import thresholds
from everstep.core.senses.inspection import Inspection, faulty, healthy, unobservable
from everstep.core.vocabulary import Symptom

SECOND_ALERT_WITHIN_S = 300.0
"""Paper: "twice within 5 minutes"."""

_NETWORK = Symptom.INFINIBAND_ERROR


@dataclass(frozen=True, slots=True)
class PortState:
    """One look at a port.

    Attributes:
        up: Whether it has a carrier and may be used.
        downs: How often it has gone down since it exists; tells of flaps between two looks.
        rate_mbps: Speed of the link, or None when it does not say.
        errors: Broken packets and link errors since it exists.
        lost: Packets that were dropped since it exists.
        packets: Packets that went through since it exists; 0 when it does not say.
    """

    up: bool
    downs: int
    rate_mbps: float | None = None
    errors: int = 0
    lost: int = 0
    packets: int = 0


class SecondAlert:
    """Whether an alert is the second within five minutes on this machine."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def note(self, at_s: float) -> bool:
        """Take in an alert; true when another came at most five minutes before."""
        last_s, self._last_s = self._last_s, at_s
        return last_s is not None and at_s - last_s <= SECOND_ALERT_WITHIN_S


class PortWatch:
    """One port over time.

    Args:
        name: Name of the port.
        second: Counts the alerts of all ports of the machine.
    """

    def __init__(self, name: str, second: SecondAlert) -> None:
        self._name = name
        self._second = second
        self._last: PortState | None = None
        self._best_rate_mbps = 0.0
        self._counts: deque[tuple[float, PortState]] = deque()
        self._down_since_s: float | None = None
        self._up_since_s: float | None = None
        self._ill = False
        self._certain = False
        self._stayed_down = False
        self._flaps = 0

    def look(self, state: PortState | None, at_s: float) -> list[Inspection]:
        """Take in a look at `at_s` of the monotonic clock; None means that the port is gone."""
        if state is None and self._last is None:
            return [unobservable("network.port", self._name, "there is no such port")]
        present = state or PortState(up=False, downs=0)
        found = [self._link(present, at_s, gone=state is None)]
        if state is not None:
            found.append(self._rate(state))
            if self._last is not None:  # one look alone sees no loss
                found.append(self._losses(state, at_s))
            else:
                self._counts.append((at_s, state))
            self._last = state
        return found

    def _link(self, state: PortState, at_s: float, gone: bool) -> Inspection:
        known_downs = state.downs if self._last is None else self._last.downs
        flaps = 0 if gone else max(0, state.downs - known_downs)
        if flaps or not state.up:
            self._went_down(at_s, flaps)
        if not state.up:
            self._up_since_s = None
            return self._is_down(at_s, gone)
        self._down_since_s = None
        if flaps or self._up_since_s is None:
            self._up_since_s = at_s
        if self._ill and at_s - self._up_since_s < thresholds.PORT_CLEAR_S:
            detail = f"went down {self._flaps} times, is up for {at_s - self._up_since_s:.0f} s"
            return faulty("network.port", self._name, _NETWORK, detail, confident=self._certain)
        self._ill = self._certain = self._stayed_down = False
        self._flaps = 0
        return healthy("network.port", self._name, "up")

    def _went_down(self, at_s: float, flaps: int) -> None:
        up_since_s = self._up_since_s
        settled = up_since_s is not None and at_s - up_since_s >= thresholds.PORT_SETTLED_S
        if not self._ill or settled:
            self._certain = self._second.note(at_s) or self._certain
            self._ill, self._stayed_down = True, False
        if self._down_since_s is None:
            self._down_since_s = at_s
            self._flaps += max(1, flaps)
        elif flaps:
            self._flaps += flaps

    def _is_down(self, at_s: float, gone: bool) -> Inspection:
        assert self._down_since_s is not None  # noqa: S101 - it has just gone down, or before
        for_s = at_s - self._down_since_s
        if for_s >= thresholds.PORT_STAYS_DOWN_S and not self._stayed_down:
            self._stayed_down = True
            self._certain = self._second.note(at_s) or self._certain
        what = "has disappeared" if gone else "is down"
        detail = f"{what}, for {for_s:.0f} s"
        return faulty("network.port", self._name, _NETWORK, detail, confident=self._certain)

    def _rate(self, state: PortState) -> Inspection:
        rate = state.rate_mbps
        if rate is None or rate <= 0:
            return unobservable("network.rate", self._name, "the link does not tell its speed")
        self._best_rate_mbps = max(self._best_rate_mbps, rate)
        detail = f"{rate / 1000:g} Gbit/s"
        if rate < self._best_rate_mbps:
            detail += f", was {self._best_rate_mbps / 1000:g} before"
            return faulty("network.rate", self._name, _NETWORK, detail)
        return healthy("network.rate", self._name, detail)

    def _losses(self, state: PortState, at_s: float) -> Inspection:
        self._counts.append((at_s, state))
        while at_s - self._counts[0][0] > thresholds.COUNTER_WINDOW_S:
            self._counts.popleft()
        first_s, first = self._counts[0]
        errors = max(0, state.errors - first.errors)
        lost = max(0, state.lost - first.lost)
        packets = max(0, state.packets - first.packets)
        detail = f"{errors} errors, {lost} of {packets} packets lost in {at_s - first_s:.0f} s"
        too_many = errors > thresholds.ERROR_RATE_PER_S * thresholds.COUNTER_WINDOW_S
        many_lost = packets > 0 and lost > packets * thresholds.LOSS_RATIO and lost > 10
        if too_many or many_lost:
            return faulty("network.errors", self._name, _NETWORK, detail)
        return healthy("network.errors", self._name, detail)


class NetworkJudge:
    """All ports of one machine over time."""

    def __init__(self) -> None:
        self._second = SecondAlert()
        self._watches: dict[str, PortWatch] = {}

    def look(self, states: Mapping[str, PortState | None], at_s: float) -> list[Inspection]:
        """Take in a look at every port that matters."""
        found: list[Inspection] = []
        for name in sorted(states):
            if name not in self._watches:
                self._watches[name] = PortWatch(name, self._second)
            found += self._watches[name].look(states[name], at_s)
        return found
