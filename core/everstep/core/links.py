"""Tests between machines: who is paired with whom, until the bad end of a failed pair is named.

Called by the incident workflow. First every machine meets both its neighbours; then whoever failed
with everybody meets machines that passed. A machine is named when machines that pass with others
fail with it; a link, when both its ends pass with others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everstep.core.orders import CheckResult
from everstep.core.vocabulary import Verdict

MAX_ROUNDS = 8
FAILURES_THAT_NAME = 2
"""Failures with good machines that tell a bad machine from one bad link."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Meeting:
    """How a pair's test ended: faulty when it failed, whoever's fault it was."""

    pair: Pair
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LinksVerdict:
    """What all meetings together say.

    Attributes:
        faulty: Machines that fail with good ones, in slot order.
        links: Pairs whose ends both pass with others, and fail together.
        unobservable: Machines about which nothing could be told, in slot order.
    """

    faulty: tuple[str, ...]
    links: tuple[Pair, ...]
    unobservable: tuple[str, ...]


def meeting_of(pair: Pair, results: Iterable[CheckResult]) -> Meeting:
    """What both ends' answers come to: one failure is enough, and a pass takes both."""
    given = {result.machine: result.verdict for result in results if result.machine in pair}
    if Verdict.FAULTY in given.values():
        return Meeting(pair, Verdict.FAULTY)
    both = [given.get(machine) for machine in pair]
    healthy = all(verdict is Verdict.HEALTHY for verdict in both)
    return Meeting(pair, Verdict.HEALTHY if healthy else Verdict.UNOBSERVABLE)


def next_pairs(
    machines: Sequence[str], rounds: Sequence[Sequence[Meeting]]
) -> tuple[Pair, ...] | LinksVerdict:
    """Pairs without common machines to test side by side, or the verdict.

    Paper: section 4.2, all-gather with neighbours; how a failed pair is told apart is ours.

    Args:
        machines: In slot order; all of them can be reached.
        rounds: The meetings of each round so far, in order.
    """
    ring = _ring(machines)
    if len(rounds) < len(ring):
        return ring[len(rounds)]
    reading = _Reading(machines, [meeting for each in rounds for meeting in each])
    if len(rounds) < MAX_ROUNDS:
        pairs = reading.telling_pairs()
        if pairs:
            return pairs
    return reading.verdict()


def _ring(machines: Sequence[str]) -> list[tuple[Pair, ...]]:
    """The rounds in which every machine meets its neighbours: two, or three for odd numbers."""
    count = len(machines)
    if count < 2:
        return []
    even = [(machines[i], machines[i + 1]) for i in range(0, count - 1, 2)]
    odd = [(machines[i], machines[i + 1]) for i in range(1, count - 1, 2)]
    closing = (machines[-1], machines[0])
    if count == 2:
        return [tuple(even)]
    if count % 2 == 0:
        return [tuple(even), (*odd, closing)]
    return [tuple(even), tuple(odd), (closing,)]


class _Reading:
    """Who passed and who failed with whom."""

    def __init__(self, machines: Sequence[str], meetings: Sequence[Meeting]) -> None:
        self._machines = machines
        self._passes: dict[str, list[str]] = defaultdict(list)
        self._failures: dict[str, list[str]] = defaultdict(list)
        self._met: dict[str, set[str]] = defaultdict(set)
        for meeting in meetings:
            for one, other in (meeting.pair, meeting.pair[::-1]):
                self._met[one].add(other)
                if meeting.verdict is Verdict.HEALTHY:
                    self._passes[one].append(other)
                elif meeting.verdict is Verdict.FAULTY:
                    self._failures[one].append(other)

    def telling_pairs(self) -> tuple[Pair, ...]:
        """Each machine that is not decided, with a good one that it has not met."""
        free = [machine for machine in self._machines if self._good(machine)]
        pairs: list[Pair] = []
        for machine in self._machines:
            if self._good(machine) or self._faulty(machine):
                continue
            partner = next((one for one in free if one not in self._met[machine]), None)
            if partner is not None:
                free.remove(partner)
                pairs.append((machine, partner))
        return tuple(pairs)

    def verdict(self) -> LinksVerdict:
        faulty = tuple(m for m in self._machines if self._faulty(m))
        links = tuple(
            (one, other)
            for at, one in enumerate(self._machines)
            for other in self._machines[at + 1 :]
            if other in self._failures[one] and self._good(one) and self._good(other)
        )
        decided = {*faulty, *(m for m in self._machines if self._good(m))}
        if len(self._machines) < 2:
            return LinksVerdict((), (), ())
        return LinksVerdict(faulty, links, tuple(m for m in self._machines if m not in decided))

    def _good(self, machine: str) -> bool:
        return bool(self._passes[machine])

    def _faulty(self, machine: str) -> bool:
        """Whether good machines fail with it, and nobody passes."""
        accusers = [other for other in self._failures[machine] if self._good(other)]
        return not self._good(machine) and len(accusers) >= FAILURES_THAT_NAME


def end_to_leave(link: Pair, suspects: Sequence[str]) -> str:
    """Which end of a bad link to evict: the one that the evidence points at, else the second.

    One is enough, since the other end passes with other machines; a machine with a bad port fails
    again with its next neighbour and then stands out.
    """
    return next((end for end in link if end in suspects), link[1])
