"""The second half of a round: fill the slots, restore, start, and see a new step."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core.model import MachineInfo
from everstep.core.orders import FROM_THE_BEGINNING
from everstep.core.progress import NO_STEP
from everstep.core.record import IncidentRecord
from everstep.core.restore import RestorePlan, is_all_gone, plan_restore
from everstep.core.stacks.words import runs_text
from everstep.core.vocabulary import Spent, Symptom
from everstep.workflows import asking, ordering, restart, storage, updating
from everstep.workflows.situation import OvertakenError, Situation


async def restart_in_place(now: Situation) -> bool:
    """Restart the job and wait for a new step; False when that failed.

    Raises:
        OvertakenError: Newer evidence came while a person or a machine was waited for.
    """
    await _fill_slots(now)
    slots = now.assignment.slots
    plan = plan_restore(now.stopped, slots, now.job.spec.layout(), now.backup)
    try:
        source = await _source(now, plan)
    except restart.MachinesRefusedError as error:
        _blame(now, error)
        return False
    if source.step == FROM_THE_BEGINNING:
        await _ask_before_starting_over(now, plan)
    now.story.mark(Spent.RESTART)
    await updating.make(now)
    attempt = now.assignment.attempt + 1
    now.assignment = replace(now.assignment, attempt=attempt)
    now.story.change(
        attempt_after=attempt, restored_step=source.step, code_version=now.assignment.code_version
    )
    await now.tell_job("assigned", now.assignment)
    now.told = now.assignment
    if now.asks_cluster:
        asking.show_new_slots(now)
    try:
        if plan.pulls or plan.loans:
            await now.unless_overtaken(restart.restore(now.job, now.assignment, plan))
        if plan.pulls:
            now.story.tell(
                f"memory restored to step {plan.step} from other machines: "
                f"{restart.pulls_text(plan.pulls)}"
            )
        if plan.loans:
            now.story.tell(
                f"{len(plan.loans)} machines fetched parts of step {plan.step} from each other"
            )
        start = restart.start(
            now.job, now.assignment, now.backup, source.step, now.given.run, source.stored
        )
        await now.unless_overtaken(start)
        now.story.tell(f"attempt {attempt} started from step {source.step}")
        return await _first_step(now, source.step + 1)
    except restart.MachinesRefusedError as error:
        _blame(now, error)
        return False
    except ActivityError as error:
        now.raise_own(Symptom.JOB_HANG, None, f"no new step: {ordering.why(error)}")
    except OvertakenError:
        now.story.tell("overtaken by newer evidence")
    now.restarts_without_progress += 1
    return False


def redone(record: IncidentRecord) -> int:
    """Finished steps that the newest restart does again."""
    return max(0, (record.failed_step or 0) - (record.restored_step or 0))


async def _source(now: Situation, plan: RestorePlan) -> storage.Source:
    """Memory's step if there is one, else that of the best checkpoint in storage.

    Raises:
        MachinesRefusedError: A machine did not take part.
        OvertakenError: Newer evidence came.
    """
    if plan.step != FROM_THE_BEGINNING:
        return storage.Source(plan.step)
    if plan.missing:
        now.story.tell(f"no copy left of some shards ({_gone(plan)})")
    if now.job.spec.checkpoint.storage is None:
        return storage.Source(FROM_THE_BEGINNING)
    if not plan.missing:
        now.story.tell("no machine's memory holds any step")
    coming = replace(now.assignment, attempt=now.assignment.attempt + 1)

    async def from_storage() -> storage.Source:
        found = await storage.find(now.job, coming, now.given.run, now.story.tell)
        return await storage.bring_back(now.job, coming, found, now.story.tell)

    source = await now.unless_overtaken(from_storage())
    assert source is not None  # noqa: S101 - nothing was said of a job that finishes
    return source


async def _ask_before_starting_over(now: Situation, plan: RestorePlan) -> None:
    if now.job.spec.checkpoint.when_all_copies_lost != "hold":
        return
    lost = _gone(plan)
    record = now.record
    newest = max(record.failed_step or 0, record.restored_step or 0, now.given.attempt_from)
    if not lost and is_all_gone(now.stopped, newest) and workflow.patched("asks-when-all-is-gone"):
        lost = f"no copy is left of step {newest}, nor of any other"
    if lost:
        question = f"{lost}. It would start from what the script itself finds"
        await now.ask(question, may_deny=False)


def _gone(plan: RestorePlan) -> str:
    return "; ".join(f"rank {rank}: {text}" for rank, text in sorted(plan.missing.items()))


def _blame(now: Situation, error: restart.MachinesRefusedError) -> None:
    for refusal in error.refusals:
        now.raise_own(Symptom.CONTAINER_ERROR, refusal.machine, refusal.reason)
    now.restarts_without_progress += 1


async def _fill_slots(now: Situation) -> None:
    """Give every vacant slot to a machine of the pool that the cluster does not mind."""
    while now.vacant:
        await _until_enough(now)
        claims = list(zip(now.vacant, now.waiting(), strict=False))
        refused = dict(await asking.claim(now, claims)) if now.asks_cluster else {}
        for slot, taken in claims:
            now.pool = [known for known in now.pool if known.machine != taken.machine]
            if taken.machine in refused:
                now.story.tell(f"standby {taken.machine} is refused: {refused[taken.machine]}")
                await now.tell_job("standby_refused", taken.machine)
            else:
                _take(now, slot, taken)


def _take(now: Situation, slot: int, taken: MachineInfo) -> None:
    slots = list(now.assignment.slots)
    slots[slot] = taken
    now.vacant = [other for other in now.vacant if other != slot]
    now.assignment = replace(now.assignment, slots=tuple(slots))
    now.story.tell(f"standby {taken.machine} takes slot {slot}")
    now.story.change(replacements=(*now.record.replacements, taken.machine))


async def _until_enough(now: Situation) -> None:
    """Wait for machines where the pool has too few for the vacant slots."""
    lacking = len(now.vacant) - len(now.waiting())
    if lacking > 0 and now.in_test:
        lacking = await _after_tests(now, lacking)
    if lacking > 0:
        slots = runs_text(now.vacant)
        await now.hold(
            f"{lacking} machine{'s' if lacking > 1 else ''} missing for slot {slots} "
            f"(evicted: {', '.join(now.record.evicted)}; no standby is left). "
            f"{_how_to_get_one(now)}: everstep machine add",
            lambda: len(now.waiting()) >= len(now.vacant),
        )


def _how_to_get_one(now: Situation) -> str:
    asked = now.job.spec.standby.refill
    return "The cluster is asked for it; to add one by hand" if asked else "Add one"


async def _after_tests(now: Situation, lacking: int) -> int:
    """Wait for those who may come back, before a person is called; how many are lacking then.

    Raises:
        OvertakenError: Newer evidence came first.
    """
    now.story.tell(f"{lacking} lacking: waits for the tests of {', '.join(now.in_test)}")
    await workflow.wait_condition(
        lambda: len(now.waiting()) >= len(now.vacant) or not now.in_test or now.overtaken()
    )
    if now.overtaken():
        raise OvertakenError
    return len(now.vacant) - len(now.waiting())


async def _first_step(now: Situation, step: int) -> bool:
    limit_s = now.job.spec.ladder.first_step_timeout_s
    seen = await now.unless_overtaken(
        restart.await_step(
            now.job,
            now.assignment.attempt,
            step,
            timedelta(seconds=limit_s),
            f"wait for step {step} on all ranks",
        ),
        or_finished=True,
    )
    at_s = workflow.now().timestamp() if seen is None else seen.at_s
    now.story.change(first_step_at_s=at_s, lost_steps=now.record.lost_steps + redone(now.record))
    now.restarts_without_progress = 0
    if seen is None:
        what = "the job finished"
    elif seen.step == NO_STEP:
        what = "all ranks run, and report no steps"
    else:
        what = f"step {step} finished by all ranks"
    now.story.tell(f"{what}: training again", at_s)
    return True
