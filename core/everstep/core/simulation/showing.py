"""What observers tell of a simulated fault: the alerts and ends of ranks that recovery goes by."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from everstep.core.groups import Layout
from everstep.core.hang import JudgedStacks
from everstep.core.model import Alert, RankExit
from everstep.core.simulation.faults import Cause, Fault, Shows
from everstep.core.simulation.world import Strike, World
from everstep.core.stacks.domain import MACHINE, Domain
from everstep.core.stacks.verdict import Judgement, NextStep, StackVerdict
from everstep.core.vocabulary import Observer, Symptom

EVIDENCE = "simulated"
"""Stands for the address of an evidence store."""


def alerts(world: World, strike: Strike, from_s: float = 0.0) -> list[Alert]:
    """The alerts that a strike raises when it is noticed.

    Args:
        world: Where it struck.
        strike: Which one.
        from_s: The job's begin, in Unix seconds.
    """
    fault = strike.trouble.fault
    at_s, step = from_s + strike.alert_at_s, world.newest_step()
    machines = _machines(world, strike)
    if fault.shows is Shows.SENSED:
        text = f"the machine is certain of {fault.symptom}"
        return [
            Alert(Observer.AGENT, fault.symptom, at_s, text, machine=machine, subject="simulated",
                  confident=True, step=step)
            for machine in machines
        ]  # fmt: skip
    if fault.shows is Shows.LOST:
        return [
            Alert(Observer.ANALYZER, Symptom.AGENT_LOST, at_s, "no heartbeat", machine=machine,
                  step=step)
            for machine in machines
        ]  # fmt: skip
    if fault.shows is Shows.SLOW:
        return [
            Alert(Observer.ANALYZER, Symptom.MFU_DECLINE, at_s, "it slows the job",
                  strike.attempt, machine, step=step)
            for machine in machines
        ]  # fmt: skip
    if fault.shows in _OF_THE_JOB:
        observer = Observer.PERSON if fault.shows is Shows.WISH else Observer.ANALYZER
        symptom, text = _OF_THE_JOB[fault.shows]
        return [Alert(observer, symptom, at_s, text, strike.attempt, step=step)]
    return [_of_rank(world, strike, at_s, step)]


def judged(world: World) -> JudgedStacks:
    """What the stacks of ranks that hang come to."""
    trouble, layout = world.trouble, world.setting.layout
    assert trouble is not None  # noqa: S101 - stacks are asked for in an incident
    fault = trouble.fault
    if fault.cause is Cause.MACHINE and trouble.culprits[0] in world.slots:
        judgement = _suspected(world, layout, world.slots.index(trouble.culprits[0]))
    else:
        code = fault.cause is Cause.CODE
        next_step = NextStep.PERSON if code else NextStep.REPLAY
        text = "all ranks wait in the program alike" if code else "nobody stands out"
        judgement = Judgement(StackVerdict.UNOBSERVABLE, (), None, (text,), next_step)
    return JudgedStacks(judgement, EVIDENCE, "grid", "picture")


def group_of(layout: Layout, slot: int) -> tuple[int, ...]:
    """The slots of the machine's pipeline: what is evicted together."""
    return layout.machines_of(layout.group("pp", layout.ranks_of(slot)[0]))


_OF_THE_JOB = {
    Shows.NAN: (Symptom.NAN_VALUE, "loss is NaN"),
    Shows.HANG: (Symptom.JOB_HANG, "no step for too long"),
    Shows.WISH: (Symptom.CODE_DATA_ADJUSTMENT, "other code is asked for"),
}


def _machines(world: World, strike: Strike) -> Sequence[str]:
    """Where it is seen."""
    fault, slots = strike.trouble.fault, world.slots
    there = [machine for machine in strike.trouble.culprits if machine in slots]
    if fault.shows is Shows.SLOW and fault.by_group and there:
        group = group_of(world.setting.layout, slots.index(there[0]))
        return [slots[slot] for slot in _chosen(world, group)]
    return there or [slots[slot] for slot in fault.slots]


def _chosen(world: World, group: Sequence[int]) -> Sequence[int]:
    """The group, or one machine of it where that is the policy: which one, nothing tells."""
    return group if world.setting.choices.group else (world.guess(group),)


def _suspected(world: World, layout: Layout, slot: int) -> Judgement:
    trouble = world.trouble
    assert trouble is not None  # noqa: S101 - the caller has seen it
    if not trouble.fault.by_group:
        ranks = tuple(layout.ranks_of(slot))
        text = "one machine's ranks stand out"
        return Judgement(StackVerdict.EVICT, ranks, Domain(MACHINE, ranks, (slot,)), (text,))
    chosen = tuple(_chosen(world, group_of(layout, slot)))
    ranks = tuple(rank for each in chosen for rank in layout.ranks_of(each))
    kind, text = ("pp", "a pipeline's ranks stand apart") if len(chosen) > 1 else (MACHINE, "guess")
    domain = Domain(kind, ranks, chosen)
    return Judgement(StackVerdict.EVICT, ranks, domain, (text,), by_group=True)


def _of_rank(world: World, strike: Strike, at_s: float, step: int) -> Alert:
    """A rank ends, before all others."""
    fault = strike.trouble.fault
    machine = _machines(world, strike)[0]
    rank = world.setting.layout.ranks_of(world.slots.index(machine))[0]
    ended = RankExit(
        rank=rank,
        machine=machine,
        attempt=strike.attempt,
        exit_code=None if _signal(fault) else 1,
        signal=_signal(fault),
        at_s=at_s,
        step=step,
        last_lines=(fault.words,) if fault.words else (),
        oom_killed=fault.shows is Shows.OUT_OF_MEMORY,
    )
    text = f"rank {rank} ended"
    return Alert(
        Observer.AGENT, Symptom.PROCESS_CRASH, at_s, text, strike.attempt, machine, rank, ended,
        step=step,
    )  # fmt: skip


def _signal(fault: Fault) -> int | None:
    ended = fault.shows in (Shows.KILLED, Shows.OUT_OF_MEMORY)
    return signal.SIGKILL if ended else None
