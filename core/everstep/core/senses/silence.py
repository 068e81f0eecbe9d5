"""Whether the ranks hang: silent for longer than their own rhythm explains.

Ranks train in step: when one hangs, the others soon wait for it. So a rank that is in a phase of
its own (it evaluates, writes a checkpoint, compiles, or sits in a debugger) explains the silence of
all others, too, for as long as that phase may take.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from everstep.core.model import RankProgress
from everstep.core.senses.running import quantile
from everstep.core.vocabulary import Phase

WINDOW = 256
"""Newest step times that say how long steps take; 2 of them may be longer than their p99."""

FEWEST_STEPS = 5
"""Steps of an attempt before their times are trusted: the second may compile again."""

FEWEST_PHASES = 3
"""Evaluations, or checkpoints, before their times are trusted."""

NEW_ATTEMPT_FACTOR = 10.0
"""How much longer than in earlier attempts the first few steps of another one may take: caches are
cold, and the code may be another."""

NAMED_RANKS = 4

_OF_THEIR_OWN = (Phase.START, Phase.EVALUATION, Phase.CHECKPOINT)


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """How long ranks may be silent.

    Attributes:
        step_times: How many times the p99 of step times, > 1.
        at_least_s: No shorter silence is a hang, >= 0.
        first_step_s: From an attempt's start to its first step, > 0.
        phase_s: In an evaluation or a checkpoint whose usual length is not known, > 0.
    """

    step_times: float
    at_least_s: float
    first_step_s: float
    phase_s: float


@dataclass(frozen=True, slots=True)
class Hang:
    """Ranks that have been silent for too long.

    Attributes:
        attempt: Their attempt.
        silent_s: For how long the longest is silent.
        limit_s: How long it might have been.
        phase: What that one was doing.
        behind: Silent ranks with the oldest step, with their machines: where to look first.
        step: That step.
    """

    attempt: int
    silent_s: float
    limit_s: float
    phase: Phase
    behind: tuple[tuple[int, str], ...]
    step: int

    def __str__(self) -> str:
        who = ", ".join(f"rank {rank} on {machine}" for rank, machine in self.behind[:NAMED_RANKS])
        if len(self.behind) > NAMED_RANKS:
            who += f" and {len(self.behind) - NAMED_RANKS} more"
        return (
            f"no sign of life for {self.silent_s:.1f} s in phase {self.phase}"
            f" (limit {self.limit_s:.1f} s); furthest behind, after step {self.step}: {who}"
        )


@dataclass(slots=True)
class _Rank:
    machine: str
    step: int
    phase: Phase
    heard_s: float
    said_s: float = -math.inf
    """Its agent's own time of the newest word; what is not newer was told before."""
    spoke: bool = False
    advanced: bool = False


@dataclass(slots=True)
class _Lengths:
    """How long a phase lasted, one entry for each step of the job at which it took place."""

    newest: deque[tuple[int, float]] = field(
        default_factory=lambda: deque[tuple[int, float]](maxlen=WINDOW)
    )
    _p99_s: float | None = None

    def note(self, step: int, length_s: float) -> None:
        if self.newest and self.newest[-1][0] == step:
            length_s = max(length_s, self.newest.pop()[1])
        self.newest.append((step, length_s))
        self._p99_s = None

    def p99_s(self, fewest: int) -> float | None:
        if len(self.newest) < fewest:
            return None
        if self._p99_s is None:
            self._p99_s = quantile([length_s for _, length_s in self.newest], 0.99)
        return self._p99_s


class SilenceSense:
    """Learns the ranks' rhythm and tells a hang from it.

    Paper: section 4.1 waits for 10 minutes without RDMA traffic. Departs from it: the limit follows
    from how long steps take, `max(step_times x p99, at_least_s)`.

    Times are on the observer's own clock; `said_s` of a report only orders those of one rank.

    Args:
        limits: How long ranks may be silent.
        expected: Whether ranks are known to report, so that one that has said nothing at all is
            held to the first step's limit, too.
    """

    def __init__(self, limits: SilenceLimits, expected: bool) -> None:
        self._limits = limits
        self._expected = expected
        self._ranks: dict[int, _Rank] = {}
        self._lengths = {phase: _Lengths() for phase in Phase}
        self._earlier_p99_s: float | None = None
        self._front_step = -1
        self._front_s: float | None = None
        self._explained_until_s = -math.inf
        self.attempt = 0
        """The newest attempt that was heard of."""

    @property
    def front_step(self) -> int:
        """The newest step that any rank of the attempt has finished; -1 before the first word."""
        return self._front_step

    @property
    def informed(self) -> bool:
        """Whether any rank of the attempt has said anything."""
        return any(rank.spoke for rank in self._ranks.values())

    def started(self, attempt: int, machine: str, ranks: Iterable[int], heard_s: float) -> None:
        """Ranks of an attempt are being started."""
        if self._turn_to(attempt):
            for rank in ranks:
                self._ranks.setdefault(rank, _Rank(machine, -1, Phase.START, heard_s))

    def news(self, progress: RankProgress) -> bool:
        """Whether a report says anything that was not said before."""
        rank = self._ranks.get(progress.rank)
        if progress.attempt != self.attempt or rank is None:
            return progress.attempt >= self.attempt
        return progress.at_s > rank.said_s

    def note(self, progress: RankProgress, heard_s: float) -> float | None:
        """Take in a report that is news.

        Returns:
            The time that the job's newest step took, when this report is the first of it and its
            beginning is known; several at once count as their mean.
        """
        if not self._turn_to(progress.attempt):
            return None
        rank = self._ranks.setdefault(
            progress.rank, _Rank(progress.machine, progress.step, Phase.START, heard_s)
        )
        if rank.phase in (Phase.EVALUATION, Phase.CHECKPOINT):
            self._lengths[rank.phase].note(self._front_step, heard_s - rank.heard_s)
        if rank.phase is not progress.phase and rank.phase is not Phase.STEP:
            self._explained_until_s = max(self._explained_until_s, heard_s)
        if rank.spoke and progress.step > rank.step:
            rank.advanced = True
        # The first word read from a log is a step that was just finished.
        rank.advanced |= progress.from_log and progress.phase is Phase.STEP
        step_s = self._note_front(progress.step, heard_s, timed=rank.phase is Phase.STEP)
        rank.step = max(rank.step, progress.step)
        rank.phase, rank.spoke = progress.phase, True
        rank.heard_s, rank.said_s = heard_s, progress.at_s
        return step_s

    def look(self, now_s: float) -> Hang | None:
        """Whether the ranks hang now."""
        training = any(rank.advanced for rank in self._ranks.values())
        counted = {
            number: rank for number, rank in self._ranks.items() if self._counts(rank, training)
        }
        limits_s = {p: self._limit_s(p) for p in {rank.phase for rank in counted.values()}}
        overdue: dict[int, float] = {}
        for number, rank in counted.items():
            since_s = rank.heard_s
            if rank.phase is Phase.STEP:
                since_s = max(since_s, self._explained_until_s)
            silent_s = now_s - since_s
            if silent_s > limits_s[rank.phase]:
                overdue[number] = silent_s
            elif rank.phase in _OF_THEIR_OWN or rank.phase is Phase.PAUSED:
                return None
        if not overdue:
            return None
        step = min(counted[number].step for number in overdue)
        longest = max(overdue, key=lambda number: overdue[number])
        phase = counted[longest].phase
        behind = tuple(
            (number, counted[number].machine)
            for number in sorted(overdue)
            if counted[number].step == step
        )
        return Hang(self.attempt, overdue[longest], limits_s[phase], phase, behind, step)

    def lost(self, machine: str) -> None:
        """Nobody is left who could speak for a machine's ranks; its loss is an alert of its own."""
        for rank in self._ranks.values():
            if rank.machine == machine:
                rank.phase = Phase.ENDED

    def excuse(self, asleep_s: float) -> None:
        """Do not hold it against the ranks that nobody listened for a while."""
        for rank in self._ranks.values():
            rank.heard_s += asleep_s
        self._explained_until_s += asleep_s
        if self._front_s is not None:
            self._front_s += asleep_s

    # --- Smaller parts ---------------------------------------------------------------------------

    def _counts(self, rank: _Rank, training: bool) -> bool:
        """Whether a rank's silence means anything.

        Where only some ranks report, the others are still at the start when those train.
        """
        if rank.phase is Phase.ENDED:
            return False
        if rank.phase is Phase.START and not rank.advanced:
            return not training and (rank.spoke or self._expected)
        return True

    def _limit_s(self, phase: Phase) -> float:
        limits = self._limits
        if phase in (Phase.PAUSED, Phase.ENDED):
            return math.inf
        if phase is Phase.START:
            return limits.first_step_s
        if phase is Phase.STEP:
            p99_s = self._lengths[phase].p99_s(FEWEST_STEPS)
            if p99_s is None and self._earlier_p99_s is not None:
                longer_s = NEW_ATTEMPT_FACTOR * self._learned_s(self._earlier_p99_s)
                return min(limits.first_step_s, longer_s)
            return limits.first_step_s if p99_s is None else self._learned_s(p99_s)
        p99_s = self._lengths[phase].p99_s(FEWEST_PHASES)
        return limits.phase_s if p99_s is None else self._learned_s(p99_s)

    def _learned_s(self, p99_s: float) -> float:
        return max(self._limits.step_times * p99_s, self._limits.at_least_s)

    def _note_front(self, step: int, heard_s: float, timed: bool) -> float | None:
        if step <= self._front_step:
            return None
        # The step after another phase, or after words that were missed, is not timed either.
        began_s, self._front_s = self._front_s, heard_s if timed else None
        steps, self._front_step = step - self._front_step, step
        if began_s is None or not timed:
            return None
        took_s = max(0.0, heard_s - max(began_s, self._explained_until_s))
        self._lengths[Phase.STEP].note(step, took_s)
        return took_s / steps

    def _turn_to(self, attempt: int) -> bool:
        """Begin afresh at a newer attempt; false for an older one."""
        if attempt > self.attempt:
            learned_s = self._lengths[Phase.STEP].p99_s(FEWEST_STEPS)
            self._earlier_p99_s = self._earlier_p99_s if learned_s is None else learned_s
            self._lengths[Phase.STEP] = _Lengths()
            self.attempt, self._ranks = attempt, {}
            self._front_step, self._front_s = -1, None
            self._explained_until_s = -math.inf
        return attempt == self.attempt
