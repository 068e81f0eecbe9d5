"""The rung of dual-phase replay: run the job, made small, on groups of machines in turn.

`core.replay` says which groups, and what their outcomes mean; this module has them run.
"""

from __future__ import annotations

from collections.abc import Sequence

from temporalio import workflow

from everstep.core import replay, trial
from everstep.core.record import Finding
from everstep.core.suspicion import Group, Trial, TrialOutcome
from everstep.core.trial import ReplayOrder
from everstep.core.vocabulary import ClimbOutcome
from everstep.workflows import trials
from everstep.workflows.situation import Situation
from everstep.workflows.tested import Tested

_OUTCOMES = {
    TrialOutcome.FAILED: ClimbOutcome.FOUND,
    TrialOutcome.PASSED: ClimbOutcome.PASSED,
    TrialOutcome.COULD_NOT_TELL: ClimbOutcome.COULD_NOT_TELL,
}


async def replay_job(now: Situation, finding: Finding) -> Tested:
    """Replay on all machines that hold a slot, for as many rounds as it takes.

    Raises:
        OvertakenError: Newer evidence came first.
    """
    return await now.unless_overtaken(_Replay(now).run()) or Tested(
        ClimbOutcome.COULD_NOT_TELL, (), "the job finished first"
    )


class _Replay:
    """One replay. Machines are numbered as they stand in slots, without those that are gone."""

    def __init__(self, now: Situation) -> None:
        self._now = now
        self._machines = now.reachable()
        self._trials_made = 0
        self._ends_at_first_failure = workflow.patched("replay-ends-at-first-failure")

    async def run(self) -> Tested:
        scheme = replay.scheme_for(self._now.job.spec.layout(), len(self._machines))
        rounds: list[list[Trial]] = []
        while isinstance(wanted := replay.next_round(scheme, rounds), replay.Round):
            rounds.append(await self._round(wanted, len(rounds) + 1))
        named = self._names(wanted.evict)
        reason = wanted.reason
        if len(self._machines) != len(self._now.assignment.slots):
            # Numbers in the reason are places, which mean nothing to a reader.
            reason = (
                f"{reason} (machines by slot: {', '.join(self._names(range(scheme.machines)))})"
            )
        return Tested(_OUTCOMES[wanted.outcome], named, f"replay, {len(rounds)} rounds: {reason}")

    async def _round(self, wanted: replay.Round, number: int) -> list[Trial]:
        orders = [self._order(group) for group in wanted.groups]
        told = await trials.hold(self._now.job, orders, self._ends_at_first_failure)
        reports = [
            dict(zip(group.machines, of_group, strict=True))
            for group, of_group in zip(wanted.groups, told, strict=True)
        ]
        ended = trial.outcomes(wanted.groups, reports)
        failed = [t.group for t in ended if t.outcome is TrialOutcome.FAILED]
        untold = [t.group for t in ended if t.outcome is TrialOutcome.COULD_NOT_TELL]
        texts = [f"replay round {number} ({wanted.purpose}): {len(ended)} groups"]
        texts += [f"failed: {', '.join(self._names(group.machines))}" for group in failed]
        texts += [f"could not tell: {', '.join(self._names(group.machines))}" for group in untold]
        self._now.story.tell("; ".join(texts))
        return ended

    def _order(self, group: Group) -> ReplayOrder:
        spec = self._now.job.spec
        order = ReplayOrder(
            attempt=self._now.assignment.attempt,
            number=self._trials_made,
            machines=tuple(self._machines[number] for number in group.machines),
            parallelism=trial.parallelism_of(spec.layout(), len(group.machines)),
            steps=spec.replay.steps,
            repeats=replay.repeats_for(spec.replay.shows_ratio, spec.replay.found_ratio),
            layers=spec.replay.layers,
            seed=self._now.record.incident,
            deadline_s=spec.replay.timeout_s,
            code_directory=self._now.assignment.code_directory or self._now.job.code_directory,
            settings=self._now.assignment.settings,
        )
        self._trials_made += 1
        return order

    def _names(self, numbers: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._machines[number].machine for number in numbers)
