"""The two rules of `checkpoint.saver`, in every order of events: a lost machine never costs more.

Ranks are played by small programs whose every step may come at any time after its causes. They
write real regions, by the same calls as the saver and the agent; what can be restored is decided by
the real planner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from everstep.agent.shards import make_room
from everstep.core.groups import Layout
from everstep.core.model import MachineInfo
from everstep.core.orders import FROM_THE_BEGINNING, MachineReport, ShardCopy
from everstep.core.placement import BackupPlan, backup_placement
from everstep.core.restore import plan_restore
from everstep.core.shard import Region, Shard, format_region, region_bytes

SLOT_BYTES = 128
LAST_STEP = 7
LAYOUTS = [
    Layout(gpus_per_machine=1, dp=2),
    Layout(gpus_per_machine=1, pp=2, dp=2),
    Layout(gpus_per_machine=2, tp=2, dp=3),
]

Program = Iterator[bool]
"""Yields whenever something else may happen; False: it waits for somebody else."""


def fresh() -> Region:
    return format_region(memoryview(bytearray(region_bytes(SLOT_BYTES))), SLOT_BYTES)


@dataclass
class Rank:
    number: int
    own: Region = field(default_factory=fresh)
    backup: Region = field(default_factory=fresh)
    finished: int = 0
    copied: int = 0
    announced: int = 0


class Job:
    """All ranks of a job, each a training program and a saving one."""

    def __init__(
        self, layout: Layout, plan: BackupPlan, redone_steps: int, copy_waits: bool = True
    ) -> None:
        self.layout = layout
        self.plan = plan
        self.redone_steps = redone_steps
        self.copy_waits = copy_waits
        self.ranks = [Rank(number) for number in range(layout.world_size)]
        self.programs = [p for rank in self.ranks for p in (self.train(rank), self.save(rank))]

    def stable(self, step: int) -> bool:
        return all(rank.announced >= step for rank in self.ranks)

    def train(self, rank: Rank) -> Program:
        for step in range(1, LAST_STEP + 1):
            # Its gradient is made of what every rank computed from its own last update.
            while min(other.finished for other in self.ranks) < step - 1:
                yield False
            while not self.may_update(rank, step):
                yield False
            rank.finished = step
            yield True

    def may_update(self, rank: Rank, step: int) -> bool:
        return self.stable(step - 1) if self.redone_steps == 1 else rank.copied >= step - 1

    def save(self, rank: Rank) -> Program:
        for step in range(1, LAST_STEP + 1):
            while rank.finished < step or (self.copy_waits and not self.stable(step - 1)):
                yield False
            newest = rank.own.newest()
            slot = rank.own.slot_to_overwrite(newest[1].step if newest else None)
            rank.own.invalidate(slot)
            yield True
            rank.copied = step
            yield True
            rank.own.commit(slot, self.shard(rank, step))
            yield True
            slot = make_room(rank.backup, self.shard(rank, step))
            yield True
            rank.backup.commit(slot, self.shard(rank, step))
            yield True
            rank.announced = step
            yield True

    def shard(self, rank: Rank, step: int) -> Shard:
        return Shard(rank.number, step, 1, 8, 8, 0, 0, 0)

    def advance(self, choice: int) -> None:
        """Let something happen: the first program from `choice` on that can go on."""
        for index in range(len(self.programs)):
            program = self.programs[(choice + index) % len(self.programs)]
            if next(program, False):
                return

    def restorable_without(self, lost: int | None) -> int:
        """The step that a restart without one machine's memory begins from."""
        slots = [
            MachineInfo(f"m{slot}" if slot != lost else "spare", "h", 0, 0, 0, 0.0)
            for slot in range(self.layout.num_machines)
        ]
        copies: dict[int, list[ShardCopy]] = {slot: [] for slot in range(len(slots))}
        for rank in self.ranks:
            holder = self.plan.holder[rank.number]
            for slot, region in (
                (self.layout.machine_of(rank.number), rank.own),
                (self.layout.machine_of(holder), rank.backup),
            ):
                steps = tuple(shard.step for _, shard in region.committed())
                if steps and slot != lost:
                    copies[slot].append(ShardCopy(rank.number, steps, 8))
        reports = [MachineReport(f"m{slot}", (), (), tuple(of)) for slot, of in copies.items()]
        return max(FROM_THE_BEGINNING, plan_restore(reports, slots, self.layout, self.plan).step)

    def most_redone(self) -> int:
        """Finished steps that the dearest machine would cost, or a process of its own."""
        finished = max(rank.finished for rank in self.ranks)
        lost: list[int | None] = [None, *range(self.layout.num_machines)]
        return finished - min(self.restorable_without(machine) for machine in lost)


def play(job: Job, choices: list[int]) -> int:
    """The most finished steps that a loss would have cost at any moment."""
    most = 0
    for choice in choices:
        job.advance(choice)
        most = max(most, job.most_redone())
    return most


choices = st.lists(st.integers(0, 11), min_size=20, max_size=250)


@pytest.mark.parametrize("redone_steps", [1, 2])
@given(layout=st.sampled_from(LAYOUTS), choices=choices)
@settings(max_examples=60, deadline=None)
def test_no_loss_costs_more_than_was_allowed(
    redone_steps: int, layout: Layout, choices: list[int]
) -> None:
    job = Job(layout, backup_placement(layout), redone_steps)
    assert play(job, choices) <= redone_steps


def starved(job: Job, slow: int) -> list[int]:
    """A schedule in which one rank's saving program comes last, always."""
    rest = [index for index in range(len(job.programs)) if index != 2 * slow + 1]
    return rest * 40


@pytest.mark.parametrize("redone_steps", [1, 2])
def test_the_ranks_of_a_slow_one_wait_for_it(redone_steps: int) -> None:
    job = Job(LAYOUTS[1], backup_placement(LAYOUTS[1]), redone_steps)
    assert play(job, starved(job, slow=1)) == redone_steps
    # Everything gets done in the end.
    for choice in list(range(len(job.programs))) * 400:
        job.advance(choice)
    assert {rank.announced for rank in job.ranks} == {LAST_STEP}


def test_two_slots_do_not_suffice_without_the_rule_for_copies() -> None:
    job = Job(LAYOUTS[1], backup_placement(LAYOUTS[1]), 2, copy_waits=False)
    dear = 0
    for slow in range(4):
        job = Job(LAYOUTS[1], backup_placement(LAYOUTS[1]), 2, copy_waits=False)
        dear = max(dear, play(job, starved_backup(job, slow)))
    assert dear > 2


def starved_backup(job: Job, slow: int) -> list[int]:
    """A schedule in which one rank commits, but its backup never gets anywhere."""
    order = list(range(len(job.programs)))
    few = [index for index in order if index != 2 * slow + 1]
    return [*(few * 6), *([2 * slow + 1] * 3), *(few * 12), *([2 * slow + 1] * 2), *(few * 12)]
