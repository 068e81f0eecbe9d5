"""Climbing: ask the ladder for the next rung, perform it, and ask again until one restarts the job.

What tests name is evicted by a rung of its own, which the ladder asks for next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from temporalio import workflow

from everstep.core import ladder, memory
from everstep.core.model import MachineInfo
from everstep.core.record import Finding
from everstep.core.vocabulary import ClimbOutcome, Mode, Rung
from everstep.workflows import asking, options
from everstep.workflows.checking import check_machines
from everstep.workflows.effects import EvictOrder
from everstep.workflows.messages import Eviction, UpdatesUndone
from everstep.workflows.ports import ClusterPort
from everstep.workflows.replaying import replay_job
from everstep.workflows.returning import begin_tests
from everstep.workflows.situation import OvertakenError, Situation
from everstep.workflows.tested import Tested

_TESTS: dict[Rung, Callable[[Situation, Finding], Awaitable[Tested]]] = {
    Rung.CHECKS: check_machines,
    Rung.REPLAY: replay_job,
}


async def climb(now: Situation, finding: Finding) -> None:
    """Climb until a rung asks for a restart, short of that restart.

    Raises:
        OvertakenError: Newer evidence came while a person was asked or machines were tested.
    """
    policy, attempt = now.job.spec.ladder_policy(), now.assignment.attempt
    if now.record.returned:
        now.evicts_again = workflow.patched("evict-again")
    approved = False
    if not now.takes_advice:
        finding = replace(finding, first_action="")
    while True:
        if _left_out(now):
            now.asks_again = workflow.patched("evict-asked-again")
            now.spares_code = workflow.patched("code-spared")
        standing = now.standing(approved)
        decision = ladder.next_rung(finding, now.record.climbs, policy, standing)
        if decision.mode is Mode.APPROVE:
            approved = await _ask(now, decision)
            if not approved:
                now.story.climbed(finding, decision, attempt, ClimbOutcome.DENIED)
        elif decision.mode is Mode.OBSERVE:
            now.story.climbed(finding, decision, attempt, ClimbOutcome.OBSERVED)
        elif decision.rung in _TESTS:
            approved = False
            await _test(now, finding, decision)
        else:
            now.story.climbed(finding, decision, attempt)
            await _perform(now, finding, decision)
            return


async def _ask(now: Situation, decision: ladder.Decision) -> bool:
    question = f"{decision.rung}: {decision.reason}"
    if decision.only_way:
        question += f". A yes evicts {', '.join(decision.machines)}"
    may_deny = decision.rung is not Rung.PAGE and not decision.only_way
    try:
        return await now.ask(question, may_deny)
    except OvertakenError:
        # What came, an urgent change say, may have nothing to do with that machine.
        if decision.rung is Rung.EVICT and workflow.patched("evidence-kept"):
            now.inbox.keep(_denied(now, decision.machines))
        raise


def _denied(now: Situation, but: Collection[str]) -> list[str]:
    """Machines whose eviction a person denied; those left out are asked for anew."""
    denials = [climb for climb in now.record.climbs if climb.outcome is ClimbOutcome.DENIED]
    return [m for climb in denials for m in climb.machines if m not in but]


def _left_out(now: Situation) -> bool:
    """Whether an eviction was chosen and not performed."""
    not_performed = (ClimbOutcome.DENIED, ClimbOutcome.OBSERVED)
    return any(c.rung is Rung.EVICT and c.outcome in not_performed for c in now.record.climbs)


async def _test(now: Situation, finding: Finding, decision: ladder.Decision) -> None:
    now.story.tell(f"rung {decision.rung} begins: {decision.reason}")
    overtaken = False
    try:
        tested = await _TESTS[decision.rung](now, finding)
    except OvertakenError:
        overtaken = True
        tested = Tested(ClimbOutcome.COULD_NOT_TELL, (), "overtaken by newer evidence")
    told = replace(decision, machines=tested.machines, reason=tested.reason)
    now.story.climbed(finding, told, now.assignment.attempt, tested.outcome)
    if overtaken:
        raise OvertakenError


async def _perform(now: Situation, finding: Finding, decision: ladder.Decision) -> None:
    if decision.rung is Rung.EVICT:
        await _evict(now, finding, decision)
    elif decision.rung is Rung.ROLLBACK:
        await _roll_back(now, decision)


async def _evict(now: Situation, finding: Finding, decision: ladder.Decision) -> None:
    now.evicting += decision.machines
    if now.asks_cluster:
        await _ask_cluster(now, finding, decision)
    apart: list[tuple[MachineInfo, bool]] = []
    suspected = now.job.spec.layout().machines_of(finding.ranks)
    for slot, info in enumerate(now.assignment.slots):
        machine = info.machine
        if machine not in decision.machines or slot in now.vacant:
            continue
        # One that came back and is suspected again has passed these tests before.
        tested = machine in finding.group_only and machine not in now.record.returned
        if tested:
            apart.append((info, slot in suspected))
        elif not now.asks_cluster:
            await workflow.execute_activity_method(
                ClusterPort.evict,
                EvictOrder(info, now.record.incident, decision.reason),
                **options.EVICT.config(f"evict {machine}: {decision.reason}"),
            )
        now.vacant.append(slot)
        at_s = workflow.now().timestamp()
        now.evictions.append((at_s, machine))
        if now.whole_ladder:
            eviction = Eviction(machine, at_s, decision.reason, tested)
            await now.tell_job("machine_evicted", eviction)
        what = ", and is tested: its group is suspected" if tested else ""
        now.story.tell(f"{machine} is out of slot {slot}{what}")
    now.story.change(evicted=(*now.record.evicted, *decision.machines))
    begin_tests(now, apart)


async def _ask_cluster(now: Situation, finding: Finding, decision: ladder.Decision) -> None:
    """Have the machines evicted; those that are to be tested first only take nothing new."""
    leaving = [info for info in now.occupied() if info.machine in decision.machines]
    tested = [info for info in leaving if info.machine in finding.group_only]
    back = [info for info in tested if info.machine in now.record.returned]
    if back and workflow.patched("evict-returned"):
        # Those are not tested again.
        tested = [info for info in tested if info not in back]
    asking.quarantine(now, tested, decision.reason)
    await asking.evict(now, [info for info in leaving if info not in tested], decision.reason)


async def _roll_back(now: Situation, decision: ladder.Decision) -> None:
    """Let the next attempt run the version before; the failing one is marked, its owner told."""
    running = now.assignment.code_version
    target = memory.rollback_target(now.codes, running)
    assert target is not None  # noqa: S101 - else the ladder was told that the rung is not there
    undone = UpdatesUndone(memory.given_up(now.codes, running), decision.reason)
    now.codes = memory.failed(now.codes, running, decision.reason)
    now.assignment = replace(
        now.assignment,
        code_version=target.version,
        code_directory=target.directory,
        settings=target.settings,
    )
    text = f"code version {running} is taken out, {target.version} takes its place"
    now.story.tell(text)
    now.pages.send(f"{text}: {decision.reason}")
    if workflow.patched("updates-undone"):
        await now.tell_job("updates_undone", undone)
