"""A hang, before anybody is stopped: where all ranks stand, and who holds them up.

Ranks are asked by their agents, twice some seconds apart, since one look cannot tell a slow job
from a stuck one. What moves is not stopped: an evaluation that nobody announced would be stopped
each time anew. It is waited for, looked at again from time to time, for as long as an evaluation
may take at most; from then on it counts as stuck, with nobody to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core import hang
from everstep.core.hang import JudgedStacks
from everstep.core.model import StepSeen
from everstep.core.orders import TraceOrder
from everstep.core.record import StackRecord
from everstep.core.stacks.verdict import NextStep, StackVerdict
from everstep.workflows import options, ordering, restart
from everstep.workflows.batches import Refusal
from everstep.workflows.effects import JudgeOrder, MachineStacks
from everstep.workflows.ports import StackPort
from everstep.workflows.situation import OvertakenError, Situation

MOST_LOOKS = 4
"""Where nobody answers, or the odd one is another each time, more looks tell no more."""

FIRST_WAIT_S = 30.0
"""For a job that moves; doubled each time."""

Look = tuple[MachineStacks, ...]


async def locate(now: Situation) -> StackRecord | None:
    """Where the ranks of a hang stand; None where that is not asked or came to nothing."""
    if hang.wants_stacks(now.inbox.kept):
        # They have been stopped since they were asked.
        attempt = now.assignment.attempt
        return next((s for s in reversed(now.record.stacks) if s.attempt == attempt), None)
    if not hang.wants_stacks(now.inbox.round) or not workflow.patched("stacks-of-a-hang"):
        return None
    # What came so far led here; what comes from now on is newer.
    now.inbox.judge()
    try:
        return await now.unless_overtaken(_locate(now))
    except OvertakenError:
        now.story.tell("stacks: not asked to the end, for there is newer evidence")
        return None


async def went_on(now: Situation, stacks: StackRecord) -> bool:
    """Wait for a job that moves; whether it made a step, or ended, by itself.

    Raises:
        OvertakenError: Newer evidence came.
    """
    step = hang.hung_after(now.inbox.round)
    left_s, wait_s = now.job.spec.detection.phase_timeout_s, FIRST_WAIT_S
    latest: StackRecord | None = stacks
    while latest is not None and latest.verdict == StackVerdict.MOVING and step is not None:
        if left_s <= 0:
            return False
        try:
            seen = await now.unless_overtaken(
                _step(now, step + 1, min(wait_s, left_s)), or_finished=True
            )
        except ActivityError:
            left_s, wait_s = left_s - wait_s, 2 * wait_s
            latest = await now.unless_overtaken(_locate(now))
            continue
        _close(now, seen)
        return True
    return False


async def _step(now: Situation, step: int, limit_s: float) -> StepSeen:
    return await restart.await_step(
        now.job,
        now.assignment.attempt,
        step,
        timedelta(seconds=limit_s),
        f"the ranks move: wait for step {step}",
    )


def _close(now: Situation, seen: StepSeen | None) -> None:
    what = "the job finished" if seen is None else f"step {seen.step} finished by all ranks"
    at_s = workflow.now().timestamp() if seen is None else seen.at_s
    now.story.change(attempt_after=now.assignment.attempt, first_step_at_s=at_s)
    now.story.tell(f"{what}: slow, not stuck; nobody was stopped", at_s)


async def _locate(now: Situation) -> StackRecord | None:
    looks = [await _look(now)]
    while True:
        await workflow.sleep(
            timedelta(seconds=now.job.spec.detection.stacks_apart_s),
            summary="let ranks move that are not stuck",
        )
        looks.append(await _look(now))
        judged = await _judge(now, looks[-2:])
        if judged is None:
            return None
        judgement = judged.judgement
        again = judgement.next_step is NextStep.LOOK_AGAIN and len(looks) < MOST_LOOKS
        if judgement.verdict is StackVerdict.UNOBSERVABLE and again:
            continue
        return _record(now, judged)


def _record(now: Situation, judged: JudgedStacks) -> StackRecord:
    stacks = hang.stack_record(
        judged,
        now.assignment.machine_names(),
        now.job.spec.layout(),
        workflow.now().timestamp(),
        now.assignment.attempt,
    )
    now.story.change(stacks=(*now.record.stacks, stacks))
    now.story.tell(hang.told(stacks))
    if stacks.next_step == NextStep.PERSON:
        now.pages.send(f"the program itself seems to hang: {stacks.reasons[0]}")
    return stacks


async def _look(now: Situation) -> Look:
    """All machines at once; who does not answer keeps nobody else's answer back."""
    order = TraceOrder(now.assignment.attempt)
    answers = await ordering.order(
        now.job.spec.name,
        now.job.machines_per_batch,
        ordering.TRACE,
        [(info.machine, order) for info in now.reachable()],
    )
    said = {
        answer.machine: MachineStacks(answer.machine, why=answer.reason)
        if isinstance(answer, Refusal)
        else MachineStacks(answer.machine, answer.evidence, answer.manifest)
        for answer in answers
    }
    return tuple(
        said.get(name) or MachineStacks(name, why="its agent is lost")
        for name in now.assignment.machine_names()
    )


async def _judge(now: Situation, looks: Sequence[Look]) -> JudgedStacks | None:
    title = f"{now.record.job}, incident {now.record.incident}, attempt {now.assignment.attempt}"
    order = JudgeOrder(title, now.job.spec.layout(), tuple(looks))
    try:
        return await workflow.execute_activity_method(
            StackPort.judge,
            order,
            **options.JUDGE.config("say by the ranks' stacks who holds the job up"),
        )
    except ActivityError as error:
        now.story.tell(f"stacks: could not be judged: {ordering.why(error)}")
        return None
