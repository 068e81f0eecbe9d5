"""Votes on who slows the job: the last rounds, and who stood out in most of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VotePolicy:
    """When votes name a machine.

    Attributes:
        round_s: Length of a round, > 0. The paper's 10 s: the counters of a round are read to a
            few milliseconds, a part in a thousand of it.
        rounds: How many of the newest rounds count, at least 1. The paper's five: half a minute
            passes before the first decision, and a burst of other work rarely lasts as long.
        flags: In how many of them a machine has to stand out: more than half. Four of five, as
            what is one chance in a hundred in a round is one in ten million then; it is decided
            40 to 50 s after the slowness began.
        ratio: By which share a rank's steps have to cost it more to stand out, > 0. A GPU at 95 %
            of its speed takes 5.3 % longer.
    """

    round_s: float = 10.0
    rounds: int = 5
    flags: int = 4
    ratio: float = 0.04

    def __post_init__(self) -> None:
        if not self.rounds / 2 < self.flags <= self.rounds:
            raise ValueError(f"{self.flags} of {self.rounds} is no majority")


class Ballot:
    """Counts in how many of the newest rounds each machine stood out.

    Paper: ByteRobust 2025, section 5: every 10 s the parallel group with the most outliers is
    flagged, and after five rounds the one with the most flags goes. Departs from it in that
    machines are flagged, as what a rank's own steps cost it points at one; that rounds are counted
    as they come, and not only after an alarm; and that most flags are not enough, but a majority of
    the rounds is needed.

    Args:
        policy: How many rounds count, and how many flags name a machine.
    """

    def __init__(self, policy: VotePolicy) -> None:
        self._flags = policy.flags
        self._rounds: deque[frozenset[int]] = deque(maxlen=policy.rounds)

    def note(self, slots: Collection[int]) -> None:
        """Take in a round: the machines that stood out in it."""
        self._rounds.append(frozenset(slots))

    @property
    def counted(self) -> int:
        """How many rounds count now."""
        return len(self._rounds)

    def flags_of(self, slot: int) -> int:
        """In how many of them a machine stood out."""
        return sum(slot in flagged for flagged in self._rounds)

    def elected(self) -> tuple[int, ...]:
        """Machines with enough flags, ascending; empty: could not tell."""
        flags = Counter(slot for flagged in self._rounds for slot in flagged)
        return tuple(sorted(slot for slot, count in flags.items() if count >= self._flags))

    def clear(self) -> None:
        """Forget all rounds."""
        self._rounds.clear()
