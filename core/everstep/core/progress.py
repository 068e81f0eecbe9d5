"""How far the ranks are: the slowest rank's step is the job's.

A script that does not use the checkpoint library reports no steps. Its ranks then count as running
once they have lived for a while, so that recovery of such a job can be told from a failed one.
Where steps are read from logs, those ranks that print them speak for all.
"""

from __future__ import annotations

from collections.abc import Iterable

from everstep.core.model import StepSeen

NO_STEP = -1
"""What stands for the step of a job whose ranks run and report none."""


class StepBoard:
    """Newest finished step of every rank, by attempt.

    Args:
        world_size: Number of ranks in the job.
        silent_after_s: How long a rank that reports nothing must live to count as running.
    """

    def __init__(self, world_size: int, silent_after_s: float) -> None:
        self._world_size = world_size
        self._silent_after_s = silent_after_s
        self._started_at_s: dict[int, float] = {}
        self._attempt = 0
        self._steps: dict[int, int] = {}
        self._stalled_s: dict[int, float] = {}
        self._stalls: dict[int, dict[int, float]] = {}
        self._all_from_logs = True
        self._done = -1
        self._newest: StepSeen | None = None
        self._ever_reported = False

    @property
    def newest(self) -> StepSeen | None:
        """The newest step that all ranks of the newest attempt have finished."""
        return self._newest

    @property
    def attempt(self) -> int:
        """The newest attempt that any rank reported from; 0 before the first report."""
        return self._attempt

    def steps(self) -> dict[int, int]:
        """Newest step by rank, in the newest attempt."""
        return dict(self._steps)

    def note(
        self,
        attempt: int,
        rank: int,
        step: int,
        at_s: float,
        from_log: bool = False,
        stalled_s: float | None = None,
    ) -> StepSeen | None:
        """Take in one report, maybe one that was read from a log.

        Args:
            attempt: The attempt.
            rank: Global rank.
            step: The newest step that it finished, or restored.
            at_s: When.
            from_log: Whether that was read from its log.
            stalled_s: How long it has stood still for checkpoints in this attempt, if it tells.

        Returns:
            The step that all ranks have now finished, when this report made it so; else None.
            Reports of older attempts, and repeated ones, change nothing.
        """
        self._ever_reported = True
        if not self._turn_to(attempt):
            return None
        self._steps[rank] = max(step, self._steps.get(rank, -1))
        self._note_stall(rank, step, stalled_s)
        self._all_from_logs &= from_log
        if len(self._steps) < self._world_size and not self._all_from_logs:
            return None
        slowest = min(self._steps.values())
        if slowest <= self._done:
            return None
        self._done = slowest
        self._newest = StepSeen(attempt, slowest, at_s, self._stalled_until(slowest))
        return self._newest

    def started(self, attempt: int, ranks: Iterable[int], step: int, at_s: float) -> None:
        """Ranks of an attempt are started from `step`, which so counts as done before."""
        if self._turn_to(attempt):
            self._done = max(self._done, step)
            self._started_at_s.update(dict.fromkeys(ranks, at_s))

    def reached(self, attempt: int, step: int, now_s: float) -> StepSeen | None:
        """The newest step seen, when it is of this attempt and at or past `step`.

        Where no rank has ever reported a step, in no attempt: the number NO_STEP, once all have
        lived long enough. A script that reported once is not taken for alive because it is silent.
        """
        seen = self._newest
        if seen is not None and seen.attempt == attempt and seen.step >= step:
            return seen
        if attempt == self._attempt and not self._ever_reported and self._all_lived(now_s):
            return StepSeen(attempt, NO_STEP, now_s)
        return None

    def _all_lived(self, now_s: float) -> bool:
        started = self._started_at_s
        return len(started) == self._world_size and all(
            now_s - at_s >= self._silent_after_s for at_s in started.values()
        )

    def _note_stall(self, rank: int, step: int, stalled_s: float | None) -> None:
        """Count what a rank stood still since its last word to the step that it has finished now.

        Its first word begins the count: whoever listens may have been started in mid-attempt.
        """
        if stalled_s is None:
            return
        more_s = stalled_s - self._stalled_s.get(rank, stalled_s)
        self._stalled_s[rank] = stalled_s
        if more_s > 0:
            of_step = self._stalls.setdefault(step, {})
            of_step[rank] = of_step.get(rank, 0.0) + more_s

    def _stalled_until(self, step: int) -> float:
        """How long training stood still in the steps up to this one that are not told yet.

        One rank that stands holds the others up, at the latest in their next collective; those that
        stand at the same time cost no more than the one that does so longest.
        """
        done = sorted(each for each in self._stalls if each <= step)
        return sum(max(self._stalls.pop(each).values()) for each in done)

    def _turn_to(self, attempt: int) -> bool:
        """Begin afresh at a newer attempt; false for an older one."""
        if attempt > self._attempt:
            self._attempt, self._steps, self._done = attempt, {}, -1
            self._stalled_s, self._stalls = {}, {}
            self._all_from_logs = True
            self._started_at_s = {}
        return attempt == self._attempt
