"""What tests of simulated machines find, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core import replay
from everstep.core.simulation.agenda import Rejoin
from everstep.core.simulation.faults import REPLAY
from everstep.core.simulation.world import World
from everstep.core.suspicion import Trial, TrialOutcome
from everstep.core.vocabulary import Check, ClimbOutcome, Symptom

_OUTCOMES = {
    TrialOutcome.FAILED: ClimbOutcome.FOUND,
    TrialOutcome.PASSED: ClimbOutcome.PASSED,
    TrialOutcome.COULD_NOT_TELL: ClimbOutcome.COULD_NOT_TELL,
}


@dataclass(frozen=True, slots=True)
class Examined:
    """What a rung of tests has come to.

    Attributes:
        outcome: As in `Climb`.
        machines: Machines that it names, by slot.
        took_s: How long it took.
    """

    outcome: ClimbOutcome
    machines: tuple[str, ...]
    took_s: float


def check_all(world: World, machines: Sequence[str], symptom: Symptom) -> Examined:
    """Stop-time checks, one after the other, until one names somebody.

    Args:
        world: The cluster.
        machines: Those that hold a slot, by slot.
        symptom: What was found.
    """
    kinds = [Check.GPU, Check.MACHINE, Check.LINKS]
    if symptom is Symptom.NAN_VALUE:
        kinds.append(Check.BITWISE)
    took_s = 0.0
    for check in kinds:
        took_s += _takes_s(world, check, len(machines))
        named = world.faulty(check, machines)
        if named:
            found = tuple(machine for machine in machines if machine in named)
            return Examined(ClimbOutcome.FOUND, found, took_s)
    return Examined(ClimbOutcome.PASSED, (), took_s)


def replay_all(world: World) -> Examined:
    """The job, made small, on groups of all machines, for as many rounds as it takes."""
    slots, times = world.slots, world.setting.durations
    scheme = replay.scheme_for(world.setting.layout, len(slots))
    faulty = {slots.index(machine) for machine in world.faulty(REPLAY, slots)}
    of_code = world.fails_everywhere()
    rounds: list[list[Trial]] = []
    took_s = 0.0
    while isinstance(wanted := replay.next_round(scheme, rounds), replay.Round):
        took_s += world.takes_s("replay", times.replay_round, len(rounds))
        failed, passed = TrialOutcome.FAILED, TrialOutcome.PASSED
        rounds.append(
            [
                Trial(group, failed if of_code or faulty & {*group.machines} else passed)
                for group in wanted.groups
            ]
        )
    named = tuple(slots[number] for number in wanted.evict)
    return Examined(_OUTCOMES[wanted.outcome], named, took_s)


def checked_apart(world: World, machines: Sequence[str], now_s: float) -> Rejoin:
    """Tests of machines that went for their group alone, while the job goes on without them."""
    done_s, bad = now_s, set[str]()
    links = [Check.LINKS] * (len(machines) > 1)
    for check in (Check.GPU, Check.MACHINE, *links):
        done_s += _takes_s(world, check, len(machines))
        bad |= world.faulty(check, machines)
    return Rejoin(done_s, tuple(machines), frozenset(bad))


def ring_rounds(machines: int) -> int:
    """In how many rounds every machine meets its neighbours; see `core.links`."""
    if machines <= 2:
        return machines - 1 if machines else 0
    return 2 + machines % 2


def _takes_s(world: World, check: Check, machines: int) -> float:
    meetings = ring_rounds(machines) if check is Check.LINKS else 1
    return sum(world.check_s(check, number) for number in range(meetings))
