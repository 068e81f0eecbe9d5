"""Which agents are alive, from connections and heartbeats; no clock of its own.

Events first: a connection that closes is evidence at once, confirmed by a short grace in which an
agent may come back. Silence on an open connection is the safety net.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lost:
    """A machine whose agent is taken for lost, and why."""

    machine: str
    reason: str


@dataclass(slots=True)
class _Agent:
    connected: bool
    since_s: float
    """When it was last heard of, or when its connection closed."""


class AgentWatch:
    """Keeps the last sign of life of each agent.

    Args:
        lost_after_s: Silence after which an agent is lost, > 0.
        reconnect_grace_s: How long an agent may take to come back after its connection closed.
    """

    def __init__(self, lost_after_s: float, reconnect_grace_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._reconnect_grace_s = reconnect_grace_s
        self._agents: dict[str, _Agent] = {}

    def expect(self, machine: str, now_s: float) -> None:
        """Count a machine as due to connect; one that is known already is left as it is."""
        self._agents.setdefault(machine, _Agent(connected=True, since_s=now_s))

    def heard(self, machine: str, now_s: float) -> None:
        """A connection was made, or a message came."""
        self._agents[machine] = _Agent(connected=True, since_s=now_s)

    def closed(self, machine: str, now_s: float) -> None:
        """The connection closed without a farewell."""
        if machine in self._agents:
            self._agents[machine] = _Agent(connected=False, since_s=now_s)

    def farewell(self, machine: str) -> None:
        """The agent said that it stops on purpose."""
        self._agents.pop(machine, None)

    def take_lost(self, now_s: float) -> list[Lost]:
        """Machines that are lost by now, sorted; each is told once and then forgotten."""
        lost = [
            Lost(machine, self._reason(agent, now_s))
            for machine, agent in sorted(self._agents.items())
            if now_s >= agent.since_s + self._patience_s(agent)
        ]
        for one in lost:
            del self._agents[one.machine]
        return lost

    def excuse(self, asleep_s: float) -> None:
        """Do not hold it against agents that nobody listened for a while."""
        for agent in self._agents.values():
            agent.since_s += asleep_s

    def next_due_s(self) -> float | None:
        """When `take_lost` may next have something to tell, or None when nobody is watched."""
        if not self._agents:
            return None
        return min(a.since_s + self._patience_s(a) for a in self._agents.values())

    def machines(self) -> list[str]:
        """Machines that are watched now, sorted."""
        return sorted(self._agents)

    def _patience_s(self, agent: _Agent) -> float:
        return self._lost_after_s if agent.connected else self._reconnect_grace_s

    def _reason(self, agent: _Agent, now_s: float) -> str:
        silent_s = now_s - agent.since_s
        if agent.connected:
            return f"no heartbeat for {silent_s:.1f} s"
        return f"connection closed, not back within {silent_s:.1f} s"
