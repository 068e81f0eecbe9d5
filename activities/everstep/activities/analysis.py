"""Questions to the analyzer: run by the analyzer's own worker, on its own task queue."""

from __future__ import annotations

from typing import Protocol

from temporalio import activity

from everstep.activities.heartbeat import beating
from everstep.core.model import StepSeen
from everstep.workflows.effects import AwaitStep
from everstep.workflows.ports import AnalysisPort


class Progress(Protocol):
    """Who knows how far the ranks are."""

    async def wait_for_step(self, attempt: int, step: int) -> StepSeen:
        """Return once every rank of the attempt has finished the step."""
        ...


class AnalysisActivities(AnalysisPort):
    """Answers from the telemetry of all ranks.

    Args:
        progress: Where the telemetry arrives.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @activity.defn(name="analysis.await_step")
    async def await_step(self, wanted: AwaitStep) -> StepSeen:
        """Wait for a step.

        Effect: none.
        Idempotent by: only asking.
        Heartbeats: yes, so that a dead analyzer is seen at once and another one asked.
        Gives up when: the caller's time-out ends.
        """
        async with beating():
            return await self._progress.wait_for_step(wanted.attempt, wanted.step)
