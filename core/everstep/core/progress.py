"""How far the ranks are: the slowest rank's step is the job's."""

from __future__ import annotations

from everstep.core.model import StepSeen


class StepBoard:
    """Newest finished step of every rank, by attempt.

    Args:
        world_size: Number of ranks in the job.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._attempt = 0
        self._steps: dict[int, int] = {}
        self._done = -1
        self._newest: StepSeen | None = None

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

    def note(self, attempt: int, rank: int, step: int, at_s: float) -> StepSeen | None:
        """Take in one report.

        Returns:
            The step that all ranks have now finished, when this report made it so; else None.
            Reports of older attempts, and repeated ones, change nothing.
        """
        if attempt < self._attempt:
            return None
        if attempt > self._attempt:
            self._attempt, self._steps, self._done = attempt, {}, -1
        self._steps[rank] = max(step, self._steps.get(rank, -1))
        if len(self._steps) < self._world_size:
            return None
        slowest = min(self._steps.values())
        if slowest <= self._done:
            return None
        self._done = slowest
        self._newest = StepSeen(attempt, slowest, at_s)
        return self._newest

    def reached(self, attempt: int, step: int) -> StepSeen | None:
        """The newest step seen, when it is of this attempt and at or past `step`."""
        seen = self._newest
        if seen is None or seen.attempt != attempt or seen.step < step:
            return None
        return seen
