"""Machines that wait for a slot of a simulated job, or will."""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.core.simulation.world import World


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Machines under test outside of the job.

    Attributes:
        at_s: When the tests are over.
        machines: Which.
        failed: Those that fail.
    """

    at_s: float
    machines: tuple[str, ...]
    failed: frozenset[str]


@dataclass
class Agenda:
    """Who joins when. Those that have joined wait in the order in which they did.

    Attributes:
        world: Says how long a machine takes.
        joins: When which machine waits for a slot, in that order.
    """

    world: World
    joins: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    def order(self, machine: str, now_s: float) -> None:
        """A machine is out for good: another one will come."""
        name, after_s = self.world.replacement(machine)
        self.put(name, now_s + after_s)

    def put(self, machine: str, at_s: float) -> None:
        """A machine waits from then on."""
        self.joins.append((at_s, machine))
        self.joins.sort(key=lambda join: join[0])

    def waiting_at(self, now_s: float) -> int:
        """How many wait."""
        return sum(1 for at_s, _ in self.joins if at_s <= now_s)

    def when(self, needed: int, now_s: float) -> float:
        """When so many wait, not before `now_s`; infinite where no more are under way."""
        if needed > len(self.joins):
            return float("inf")
        return max(now_s, self.joins[needed - 1][0]) if needed else now_s

    def take(self, now_s: float) -> str:
        """The machine that has waited longest."""
        at_s, machine = self.joins.pop(0)
        assert at_s <= now_s  # noqa: S101 - the caller waited for it
        return machine
