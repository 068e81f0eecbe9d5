"""What goes wrong with a simulated job: ways in which it fails, and the faults drawn from them.

A way says how one kind of fault comes about: its symptom, its cause, how it shows, and which tests
find it. A stream of faults is drawn from ways by their weights, or read from a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from everstep.core.simulation.chance import Chance, Spread
from everstep.core.vocabulary import Symptom

DAY_S = 86_400.0

REPLAY = "replay"
"""The test, beside those of `vocabulary.Check`, that runs the job itself."""


class Cause(StrEnum):
    """What has to change before a fault stops coming back."""

    MACHINE = "machine"
    CODE = "code"
    PASSING = "passing"
    """Nothing: the next attempt is free of it."""
    WISH = "wish"
    """No fault at all: a person wants other code or data."""


class Shows(StrEnum):
    """How a fault is seen."""

    SENSED = "sensed"
    """A machine's own senses are certain of it."""
    LOST = "lost"
    """The agent is gone with its machine."""
    WORDS = "words"
    """A rank ends with an exception."""
    KILLED = "killed"
    """A rank is ended from outside."""
    OUT_OF_MEMORY = "out_of_memory"
    """A rank is ended by the kernel."""
    NAN = "nan"
    HANG = "hang"
    SLOW = "slow"
    """Training goes on, and the votes name a machine."""
    WISH = "wish"


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a job fails.

    Attributes:
        symptom: Row of Table 1.
        weight: How often, relative to the other ways.
        cause: What has to change.
        shows: How it is seen.
        detection: Key of the time that seeing it takes, in `Durations.detect`.
        words: What the rank that ends says last; for WORDS.
        machines: How many neighbours fail together; for MACHINE.
        found: Probability with which a test names a faulty machine, by test; 0 where not named.
        by_group: Share of hangs in which the stacks point at a parallel group, and at no machine.
        returns: After how long of training it shows again, while its cause is there.
    """

    symptom: Symptom
    weight: float
    cause: Cause
    shows: Shows
    detection: str
    words: str = ""
    machines: int = 1
    found: Mapping[str, float] = field(default_factory=dict[str, float])
    by_group: float = 0.0
    returns: Spread = field(default_factory=lambda: Spread.fixed(60.0))


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        number: Within the stream, from 1.
        at_s: When, in seconds since the job's begin.
        symptom: Row of Table 1.
        cause: What has to change.
        shows: How it is seen.
        detection: Key of the time that seeing it takes.
        slots: Where it shows, ascending; for MACHINE, where its machines stand.
        words: What the rank that ends says last.
        found_by: Tests that name its machine, sorted.
        by_group: Whether stacks point at a group only.
        returns_s: After how long of training it shows again, while its cause is there.
    """

    number: int
    at_s: float
    symptom: Symptom
    cause: Cause
    shows: Shows
    detection: str
    slots: tuple[int, ...]
    words: str = ""
    found_by: tuple[str, ...] = ()
    by_group: bool = False
    returns_s: float = 60.0


def draw_faults(
    ways: Sequence[Way], every_s: float, machines: int, days: float, seed: int
) -> Iterator[Fault]:
    """A stream of faults: as often as `every_s` says, at moments that know nothing of each other.

    Args:
        ways: What may happen, by weight.
        every_s: Mean time between two faults of the whole job.
        machines: Slots of the job; each is as likely as the others.
        days: How long.
        seed: What all chance follows from.
    """
    chance = Chance(seed)
    gaps = chance.of("when")
    weights = [way.weight for way in ways]
    at_s, number = 0.0, 0
    while True:
        at_s += gaps.expovariate(1 / every_s)
        if at_s >= days * DAY_S:
            return
        number += 1
        way = ways[chance.weighted(weights, "way", number)]
        yield _drawn(way, number, at_s, machines, chance)


def _drawn(way: Way, number: int, at_s: float, machines: int, chance: Chance) -> Fault:
    together = min(way.machines, machines)
    first = chance.of("where", number).randrange(machines) // together * together
    found = [
        test
        for test, probability in sorted(way.found.items())
        if chance.happens(probability, "found", number, test)
    ]
    return Fault(
        number=number,
        at_s=at_s,
        symptom=way.symptom,
        cause=way.cause,
        shows=way.shows,
        detection=way.detection,
        slots=tuple(range(first, min(first + together, machines))),
        words=way.words,
        found_by=tuple(found),
        by_group=chance.happens(way.by_group, "group", number),
        returns_s=way.returns.draw(chance.of("returns", number)),
    )
