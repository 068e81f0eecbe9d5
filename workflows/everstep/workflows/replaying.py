"""The rung of dual-phase replay: run the job, made small, on groups of machines in turn.

`core.replay` says which groups, and what their outcomes mean; this module has them run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core import names, replay, trial
from everstep.core.model import MachineInfo
from everstep.core.record import Finding
from everstep.core.suspicion import Group, Trial, TrialOutcome
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.core.vocabulary import ClimbOutcome, Verdict
from everstep.workflows import options, ordering
from everstep.workflows.ports import CheckPort
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
        reports = await asyncio.gather(*(self._group(group) for group in wanted.groups))
        trials = trial.outcomes(wanted.groups, reports)
        failed = [t.group for t in trials if t.outcome is TrialOutcome.FAILED]
        untold = [t.group for t in trials if t.outcome is TrialOutcome.COULD_NOT_TELL]
        texts = [f"replay round {number} ({wanted.purpose}): {len(trials)} groups"]
        texts += [f"failed: {', '.join(self._names(group.machines))}" for group in failed]
        texts += [f"could not tell: {', '.join(self._names(group.machines))}" for group in untold]
        self._now.story.tell("; ".join(texts))
        return trials

    async def _group(self, group: Group) -> dict[int, ReplayReport]:
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
        return dict(zip(group.machines, await self._reports(order), strict=True))

    async def _reports(self, order: ReplayOrder) -> list[ReplayReport]:
        """All reports of a trial, which is over for the others when one machine has failed.

        They may wait for its ranks until the deadline.
        """
        calls = [asyncio.create_task(self._one(info, order)) for info in order.machines]
        try:
            await workflow.wait_condition(
                lambda: (
                    all(call.done() for call in calls)
                    or (self._ends_at_first_failure and any(map(_has_failed, calls)))
                )
            )
        finally:
            for call in calls:
                call.cancel()
        return await asyncio.gather(*calls)

    async def _one(self, info: MachineInfo, order: ReplayOrder) -> ReplayReport:
        """One machine's report; no answer is an answer that tells nothing."""
        config = options.check(order.deadline_s).config(
            f"replay on {', '.join(one.machine for one in order.machines)}",
            names.machine_queue(self._now.job.spec.name, info.machine),
        )
        # The next trial needs the machine.
        wait = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
        config["cancellation_type"] = wait
        try:
            return await workflow.execute_activity_method(CheckPort.replay, order, **config)
        except ActivityError as error:
            why = ordering.why(error)
            return ReplayReport(info.machine, Verdict.UNOBSERVABLE, f"no answer: {why}")

    def _names(self, numbers: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._machines[number].machine for number in numbers)


def _has_failed(call: asyncio.Task[ReplayReport]) -> bool:
    done = call.done() and not call.cancelled() and call.exception() is None
    return done and call.result().verdict is Verdict.FAULTY
