"""Random incidents through the real workflows: `python -m tests.soak.incidents NUMBER [SEED]`.

One job on fake machines meets one incident after the other. In each, something is wrong (nothing
that lasts, a machine, a link, the code), some tests see it and some do not, some cannot tell, and
the failure comes back for as long as the culprit takes part. A person lets go on what is held, and
mends what nobody found. Several jobs run side by side, and every second one loses its controller
at random moments for another that knows nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path

from everstep.core.memory import CodeVersion
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Check, ClimbOutcome, Outcome, Rung, Verdict
from everstep.spec.job import JobSpec
from everstep.workflows import options
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.messages import Approval
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeMachine, FakeWorld
from tests.fakes.servers import dev_server

MACHINES = 4
RANKS = 8

SPEC = JobSpec.model_validate(
    {
        "name": "soak",
        "command": ["python", "train.py"],
        "code": {"directory": "."},
        "machines": MACHINES,
        "gpus_per_machine": 2,
        "parallelism": {"tp": 2, "dp": 4, "order": "tp-dp"},
        "standby": {"count": 1},
        "ladder": {"evidence_window_s": 0.01, "probation_s": 0.05, "probation_steps": 3},
        "replay": {"steps": 1, "shows_ratio": 1.0},
        "safety": {"max_evicted_ratio": 0.5, "window_s": 5},
    }
)


class Wrong(Enum):
    """What is wrong in an incident."""

    NOTHING_THAT_LASTS = "transient"
    MACHINE = "machine"
    LINK = "link"
    CODE = "code"
    MACHINE_GONE = "gone"


class Seen(Enum):
    """Where a bad machine shows, beside in training."""

    GPU = "gpu"
    BITWISE = "bitwise"
    REPLAY = "replay"
    NOWHERE = "nowhere"


@dataclass
class Trouble:
    """One incident as fate has it.

    Attributes:
        wrong: What is wrong.
        seen: Which test sees a bad machine.
        guilty: Machines that may be evicted for it.
        points: Whether the failure points at a machine: it crashes a rank there.
        mended: Whether a person has put it right.
    """

    wrong: Wrong
    seen: Seen
    guilty: tuple[str, ...] = ()
    points: bool = False
    mended: bool = False


@dataclass
class Soak:
    """A job that meets incidents, and what it has met so far."""

    control: Control
    chance: random.Random
    step: int = 10
    joined: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])

    async def begin(self) -> None:
        for _ in range(MACHINES + 1):
            await self.join()
        await self.control.training(1)
        await self.control.world.advance(1, self.step)

    async def join(self) -> None:
        self.joined += 1
        await self.control.join(f"m{self.joined}")

    async def meet(self, number: int) -> IncidentRecord:
        """Let one incident happen, and see it through."""
        trouble = await self._trouble()
        await self._strike(trouble)
        record = await self._next(number, 0)
        while record.outcome is not Outcome.RECOVERED:
            attempt = record.attempt_after
            if record.outcome is Outcome.HELD:
                await self._help(record, trouble)
                attempt = 0
            elif await self._lasts(trouble, record):
                await self._strike(trouble)
            else:
                self.step += 10
                await self.control.world.advance(attempt, self.step)
            record = await self._next(number, attempt)
        await self.control.until_phase("training")
        hold_to_the_rules(record, trouble)
        self.outcomes[" > ".join(climb.rung for climb in record.climbs)] += 1
        for machine in self.control.world.machines.values():
            machine.mend()
        return record

    async def _next(self, number: int, after: int) -> IncidentRecord:
        """The record once the incident is held or over, or a later attempt trains."""

        def moved(record: IncidentRecord) -> bool:
            trains = record.first_step_at_s is not None and record.attempt_after > after
            return record.outcome is not Outcome.OPEN or trains

        await self.control.until_archived(moved, number)
        return self.control.archive.records[number]

    async def _trouble(self) -> Trouble:
        slots = await self._slots()
        wrong = self.chance.choice([*Wrong])
        trouble = Trouble(wrong, self.chance.choice([*Seen]))
        first, second = self.chance.sample(range(MACHINES), 2)
        if wrong is Wrong.LINK:
            trouble.guilty = (slots[first].name, slots[second].name)
            slots[first].bad_links = {slots[second].name}
        elif wrong in (Wrong.MACHINE, Wrong.MACHINE_GONE):
            trouble.guilty = (slots[first].name,)
            trouble.points = self.chance.random() < 0.5
        if wrong is Wrong.MACHINE:
            if trouble.seen is Seen.GPU:
                slots[first].finds[Check.GPU] = Verdict.FAULTY
            elif trouble.seen is Seen.BITWISE:
                slots[first].arithmetic = "wrong"
            elif trouble.seen is Seen.REPLAY:
                slots[first].replays = Verdict.FAULTY
        if self.chance.random() < 0.3:
            dark = slots[self.chance.randrange(MACHINES)]
            dark.finds.setdefault(self.chance.choice([*Check]), Verdict.UNOBSERVABLE)
        return trouble

    async def _slots(self) -> list[FakeMachine]:
        assignment = (await self.control.status()).assignment
        assert assignment is not None
        return [self.control.world.machines[name] for name in assignment.machine_names()]

    async def _strike(self, trouble: Trouble) -> None:
        if trouble.wrong is Wrong.MACHINE_GONE:
            await self.control.lose(trouble.guilty[0])
        elif trouble.points:
            victim = self.control.world.machines[trouble.guilty[0]]
            await self.control.crash(victim.name, victim.running[0], self.chance.choice([9, 11]))
        else:
            assignment = (await self.control.status()).assignment
            assert assignment is not None
            await self.control.nan(assignment.attempt)

    async def _lasts(self, trouble: Trouble, record: IncidentRecord) -> bool:
        """Whether the failure comes back: what is wrong is still there."""
        if trouble.mended or trouble.wrong in (Wrong.NOTHING_THAT_LASTS, Wrong.MACHINE_GONE):
            return False
        if trouble.wrong is Wrong.CODE:
            return not any(climb.rung is Rung.ROLLBACK for climb in record.climbs)
        names = [machine.name for machine in await self._slots()]
        return all(machine in names for machine in trouble.guilty)

    async def _help(self, record: IncidentRecord, trouble: Trouble) -> None:
        if "missing for slot" in record.missing:
            await self.join()
        else:
            trouble.mended = trouble.mended or "nothing left" in record.missing
            word = Approval("soak")
            await self.control.incident(record.incident).signal(ResolveIncident.approve, word)
        await self.control.until(lambda r: r.missing != record.missing, record.incident)


def hold_to_the_rules(record: IncidentRecord, trouble: Trouble) -> None:
    """What is true of every incident that is over.

    Raises:
        AssertionError: It is not of this one.
    """
    told = f"{trouble} {record}"
    assert record.outcome is Outcome.RECOVERED, told
    assert {*record.evicted} <= {*trouble.guilty}, told
    assert len(record.evicted) == len({*record.evicted}), told
    once = [climb.rung for climb in record.climbs if climb.rung is not Rung.EVICT]
    assert len(once) == len({*once}), told
    for climb in record.climbs:
        if climb.outcome in (ClimbOutcome.PASSED, ClimbOutcome.COULD_NOT_TELL):
            assert climb.machines == (), told
    if trouble.wrong is Wrong.MACHINE and trouble.seen is not Seen.NOWHERE:
        visible = trouble.seen is not Seen.BITWISE or not trouble.points
        assert record.evicted == trouble.guilty or not visible or trouble.mended, told


async def soak(address: str, seed: int, number: int, kills: bool = False) -> Counter[str]:
    """Let a job meet this many incidents; how often which rungs were climbed.

    Args:
        address: A server's.
        seed: Of all that happens, but for when a controller is lost.
        number: How many incidents.
        kills: Whether its controller is lost now and then.
    """
    chance = random.Random(seed)  # noqa: S311 - chance that can be had again, no secret
    earlier = tuple(CodeVersion(f"v0-{i}", f"/code/{i}", proven=True) for i in range(40))
    world = FakeWorld(RANKS)
    async with controlled(address, SPEC, world, earlier, most_incidents=number) as control:
        control.look_every_s = 0.1  # each look is work for the workflows, too
        control.patience_s = PATIENCE_S
        job = Soak(control, chance)
        await job.begin()
        over = asyncio.Event()
        losing = asyncio.create_task(_lose_controllers(control, seed, over))
        if not kills:
            over.set()
        try:
            for incident in range(1, number + 1):
                try:
                    await job.meet(incident)
                except AssertionError as error:
                    told = f"seed {seed}, incident {incident}: {error}"
                    raise AssertionError(told) from error
        finally:
            over.set()
            await losing
        result = await control.finish()
    assert result.incidents == number
    return job.outcomes


async def _lose_controllers(control: Control, seed: int, over: asyncio.Event) -> None:
    chance = random.Random(-seed)  # noqa: S311 - no secret
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), chance.uniform(*BETWEEN_KILLS_S))
            return
        await control.controllers.replace()


async def soak_side_by_side(address: str, seed: int, number: int) -> Counter[str]:
    """Let jobs meet this many incidents together, each job with a seed of its own."""
    # All workers are one process here. Where others starve it, a task would be given up after two
    # seconds, begun anew, and given up again.
    options.WORKFLOW_TASK_TIMEOUT = timedelta(seconds=10)
    outcomes, at_once = Counter[str](), asyncio.Semaphore(JOBS_AT_ONCE)
    size = min(JOB_INCIDENTS, -(-number // JOBS_AT_ONCE))

    async def one(begin: int) -> None:
        async with at_once:
            kills = begin // size % 2 == 1
            outcomes.update(await soak(address, seed + begin, min(size, number - begin), kills))

    async with asyncio.TaskGroup() as jobs:
        for begin in range(0, number, size):
            jobs.create_task(one(begin))
    return outcomes


PATIENCE_S = 240.0
"""For the slowest step of an incident on a machine with other work: each controller that is lost in
the middle of a workflow task costs the task's time-out, and several may be lost in one step."""

BETWEEN_KILLS_S = (0.5, 5.0)

JOBS_AT_ONCE = 4
"""A job waits for the server most of the time; more than this only wait for the processor."""

JOB_INCIDENTS = 25


def main(number: int, seed: int) -> None:
    """Soak, and say what was climbed how often."""
    logging.basicConfig(level=logging.WARNING)
    # That a wait for a step was cancelled is part of every incident.
    for name in ("temporalio.activity", "temporalio.worker._activity"):
        logging.getLogger(name).setLevel(logging.ERROR)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, dev_server(Path(folder)) as address:
        outcomes = asyncio.run(soak_side_by_side(address, seed, number))
    print(f"{number} incidents, {time.monotonic() - began_s:.0f} s")  # noqa: T201
    for rungs, times in outcomes.most_common():
        print(f"{times:6d}  {rungs}")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
