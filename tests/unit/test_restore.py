from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings, strategies as st
from tests.unit.layouts import PAPER_ORDER, layouts

from everstep.core.groups import Layout
from everstep.core.model import MachineInfo
from everstep.core.orders import FROM_THE_BEGINNING, Loan, MachineReport, Pull, ShardCopy
from everstep.core.placement import BackupPlan, backup_placement, exposed_groups, no_backup
from everstep.core.restore import RestorePlan, plan_restore

SMALL = Layout(2, tp=2, pp=2, dp=2, order=PAPER_ORDER)
PLAN = backup_placement(SMALL)

Memory = dict[int, dict[int, set[int]]]
"""Steps by rank by slot."""


def machine(slot: int, name: str | None = None) -> MachineInfo:
    return MachineInfo(name or f"m{slot}", f"10.0.0.{slot}", 7000 + slot, 29500, 1, 0.0)


def machines(layout: Layout) -> tuple[MachineInfo, ...]:
    return tuple(machine(slot) for slot in range(layout.num_machines))


def reports(memory: Mapping[int, Mapping[int, Iterable[int]]]) -> list[MachineReport]:
    return [
        MachineReport(
            f"m{slot}",
            (),
            (),
            tuple(ShardCopy(rank, tuple(sorted(steps)), 1) for rank, steps in of_slot.items()),
        )
        for slot, of_slot in memory.items()
    ]


def full_memory(layout: Layout, backup: BackupPlan, *, own: set[int], copy: set[int]) -> Memory:
    """Every machine holds `own` of its ranks, and `copy` of those that it keeps for others."""
    memory: Memory = {slot: {} for slot in range(layout.num_machines)}
    for rank in range(layout.world_size):
        memory[layout.machine_of(rank)][rank] = set(own)
        if rank in backup.holder:
            memory[layout.machine_of(backup.holder[rank])][rank] = set(copy)
    return memory


def wanted_by(layout: Layout, backup: BackupPlan, slot: int) -> set[int]:
    return {*layout.ranks_of(slot), *backup.held_by(layout, slot)}


def apply(plan: RestorePlan, memory: Memory, layout: Layout) -> Memory:
    """What machines hold at the plan's step when its pulls are done; fails on an empty source."""
    at_step: Memory = {
        slot: {rank: {plan.step} for rank, steps in of_slot.items() if plan.step in steps}
        for slot, of_slot in memory.items()
    }
    after = {slot: dict(at_step.get(slot, {})) for slot in range(layout.num_machines)}
    for name, pulls in plan.pulls.items():
        for pull in pulls:
            source = int(pull.machine[1:])
            assert pull.rank in at_step.get(source, {})
            assert (pull.host, pull.port) == (f"10.0.0.{source}", 7000 + source)
            assert pull.rank not in after[int(name[1:])]
            after[int(name[1:])][pull.rank] = {plan.step}
    return after


def test_the_first_start_begins_at_the_beginning_and_misses_nothing() -> None:
    empty = reports({slot: {} for slot in range(4)})
    assert plan_restore(empty, machines(SMALL), SMALL, PLAN) == RestorePlan(
        FROM_THE_BEGINNING, {}, {}
    )


def test_a_killed_rank_needs_no_transfer() -> None:
    memory = full_memory(SMALL, PLAN, own={6, 7}, copy={6, 7})
    plan = plan_restore(reports(memory), machines(SMALL), SMALL, PLAN)
    assert plan == RestorePlan(7, {}, {})


def test_a_lost_machine_is_refilled_from_owner_and_holder() -> None:
    # Machine 1 (ranks 2, 3) exchanges with machine 2 (ranks 4, 5), and a standby takes slot 1.
    memory = full_memory(SMALL, PLAN, own={6, 7}, copy={6, 7})
    del memory[1]
    slots = (machine(0), machine(1, "standby"), machine(2), machine(3))
    plan = plan_restore(reports(memory), slots, SMALL, PLAN)
    assert plan.step == 7
    assert plan.missing == {}
    assert plan.pulls == {
        "standby": tuple(Pull(rank, "m2", "10.0.0.2", 7002) for rank in (2, 3, 4, 5))
    }


def test_a_copy_that_lags_decides_the_step() -> None:
    memory = full_memory(SMALL, PLAN, own={6, 7}, copy={5, 6})
    del memory[1]
    plan = plan_restore(reports(memory), machines(SMALL), SMALL, PLAN)
    assert plan.step == 6


def test_what_a_machine_outside_the_assignment_holds_does_not_count() -> None:
    memory = full_memory(SMALL, PLAN, own={7}, copy={6})
    evicted = (*machines(SMALL)[:3], machine(3, "standby"))
    plan = plan_restore(reports(memory), evicted, SMALL, PLAN)
    assert plan.step == FROM_THE_BEGINNING
    assert set(plan.missing) == {6, 7}


def test_both_copies_lost_names_ranks_and_machines() -> None:
    memory = full_memory(SMALL, PLAN, own={7}, copy={7})
    del memory[0], memory[3]
    slots = (machine(0, "s0"), machine(1), machine(2), machine(3, "s3"))
    plan = plan_restore(reports(memory), slots, SMALL, PLAN)
    assert plan.step == FROM_THE_BEGINNING
    assert plan.pulls == {}
    assert sorted(plan.missing) == [0, 1, 6, 7]
    assert "slot 0, now s0" in plan.missing[0]
    assert "slot 3, now s3" in plan.missing[0]


def test_a_rank_without_a_backup_is_missed_with_the_reason() -> None:
    plan_without = no_backup(SMALL, "switched off")
    memory = full_memory(SMALL, plan_without, own={7}, copy=set())
    del memory[2]
    plan = plan_restore(reports(memory), machines(SMALL), SMALL, plan_without)
    assert sorted(plan.missing) == [4, 5]
    assert "switched off" in plan.missing[4]


def test_no_common_step_names_the_ranks_that_lack_the_best_one() -> None:
    memory = full_memory(SMALL, PLAN, own={7}, copy={7})
    memory[0][0] = memory[3][0] = {5}
    plan = plan_restore(reports(memory), machines(SMALL), SMALL, PLAN)
    assert plan.step == FROM_THE_BEGINNING
    assert plan.missing == {0: "its copies are of step 5, while 7 other ranks have step 7"}


def test_a_copy_of_step_0_is_no_copy() -> None:
    memory = full_memory(SMALL, PLAN, own={0}, copy={0})
    plan = plan_restore(reports(memory), machines(SMALL), SMALL, PLAN)
    assert plan == RestorePlan(FROM_THE_BEGINNING, {}, {})


def test_sources_that_are_not_the_owner_share_the_load() -> None:
    layout = Layout(2, dp=8)
    # Machine 0 lost both ranks' shards; machines 1, 2 and 3 all happen to have them.
    plan_without = no_backup(layout, "switched off")
    memory = full_memory(layout, plan_without, own={3}, copy=set())
    memory[0] = {}
    for slot in (1, 2, 3):
        memory[slot] |= {0: {3}, 1: {3}}
    plan = plan_restore(reports(memory), machines(layout), layout, plan_without)
    assert [pull.machine for pull in plan.pulls["m0"]] == ["m1", "m2"]


def test_the_number_of_slots_must_fit() -> None:
    with pytest.raises(ValueError, match="3 slots for 4 machines"):
        plan_restore([], machines(SMALL)[:3], SMALL, PLAN)


@given(layouts(min_machines=2), st.data())
@settings(deadline=None)
def test_any_single_machine_can_be_lost(layout: Layout, data: st.DataObject) -> None:
    backup = backup_placement(layout)
    lost = data.draw(st.integers(0, layout.num_machines - 1))
    memory = full_memory(layout, backup, own={8, 9}, copy={7, 8})
    # The rank that is furthest behind with its own state, and one whose copy is.
    slow = data.draw(st.integers(0, layout.world_size - 1))
    memory[layout.machine_of(slow)][slow] = {7, 8}
    memory[lost] = {}
    plan = plan_restore(reports(memory), machines(layout), layout, backup)
    newest = [
        max(max(of_slot.get(rank, {0})) for of_slot in memory.values())
        for rank in range(layout.world_size)
    ]
    assert plan.step == min(newest) == 8
    after = apply(plan, memory, layout)
    for slot in range(layout.num_machines):
        assert wanted_by(layout, backup, slot) <= set(after[slot])


SIZES = st.sampled_from([1, 2, 4, 8])
ORDERS = st.sampled_from([("tp", "pp", "dp"), ("tp", "dp", "pp"), ("dp", "tp", "pp")])


@given(tp=SIZES, pp=SIZES, dp=SIZES, gpus=SIZES, order=ORDERS, data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_whole_group_can_be_lost_when_each_rank_keeps_a_part(
    tp: int, pp: int, dp: int, gpus: int, order: tuple[str, ...], data: st.DataObject
) -> None:
    """Of every part a copy is left wherever the plan says so, and comes to all who need it."""
    assume((tp * pp * dp) % gpus == 0 and tp * pp * dp > gpus)
    layout = Layout(gpus, tp=tp, pp=pp, dp=dp, order=order)
    backup = backup_placement(layout)
    memory = full_memory(layout, backup, own={4, 5}, copy={4, 5})
    kind = data.draw(st.sampled_from(layout.wide_kinds))
    gone = layout.machines_of_group(kind, data.draw(st.integers(0, layout.world_size - 1)))
    left = {slot: {} if slot in gone else dict(held) for slot, held in memory.items()}
    told = in_parts(reports(left)) if dp > 1 else reports(left)
    plan = plan_restore(told, machines(layout), layout, backup)
    if backup.lost_with(layout, gone):
        # `everstep plan` names such a group: there is no machine outside of it.
        assert any(gone == one.group.machines for one in exposed_groups(layout, backup))
        assert (plan.step, plan.loans) == (FROM_THE_BEGINNING, {})
    else:
        assert (plan.step, plan.missing) == (5, {})
        assert_states_complete(plan, left, layout, backup)


def in_parts(told: Iterable[MachineReport]) -> list[MachineReport]:
    return [
        replace(r, copies=tuple(replace(copy, in_parts=copy.steps) for copy in r.copies))
        for r in told
    ]


def assert_states_complete(
    plan: RestorePlan, memory: Memory, layout: Layout, backup: BackupPlan
) -> None:
    """Each machine holds what it must, and has or borrows all parts that its ranks need, once."""
    after = apply(plan, memory, layout)
    for slot in range(layout.num_machines):
        assert wanted_by(layout, backup, slot) <= set(after[slot])
        loans = plan.loans.get(f"m{slot}", ())
        borrowed = [rank for loan in loans for rank in loan.ranks]
        assert len(borrowed) == len(set(borrowed))
        for loan in loans:
            source = int(loan.machine[1:])
            assert (loan.host, loan.port) == (f"10.0.0.{source}", 7000 + source)
            assert all(plan.step in memory[source].get(rank, ()) for rank in loan.ranks)
        own = layout.ranks_of(slot)
        needed = (
            {peer for rank in own for peer in layout.group("dp", rank)} if layout.dp > 1 else ()
        )
        assert set(borrowed) == set(needed) - set(own)


def test_ranks_whose_step_is_whole_borrow_nothing() -> None:
    memory = full_memory(SMALL, PLAN, own={6, 7}, copy={6, 7})
    told = [
        replace(r, copies=tuple(replace(copy, in_parts=(6,)) for copy in r.copies))
        for r in reports(memory)
    ]
    assert plan_restore(told, machines(SMALL), SMALL, PLAN) == RestorePlan(7, {}, {})


def test_parts_come_from_their_own_rank_and_else_from_a_holder() -> None:
    # DP groups are 0 and 4, 1 and 5, 2 and 6, 3 and 7; machine 1 (ranks 2, 3) is lost.
    memory = full_memory(SMALL, PLAN, own={6, 7}, copy={6, 7})
    del memory[1]
    slots = (machine(0), machine(1, "standby"), machine(2), machine(3))
    plan = plan_restore(in_parts(reports(memory)), slots, SMALL, PLAN)
    assert plan.loans == {
        "m0": (Loan((4, 5), "m2", "10.0.0.2", 7002),),
        "standby": (Loan((6, 7), "m3", "10.0.0.3", 7003),),
        "m2": (Loan((0, 1), "m0", "10.0.0.0", 7000),),
        "m3": (Loan((2, 3), "m2", "10.0.0.2", 7002),),
    }


@given(layouts(min_machines=2), st.data())
@settings(deadline=None)
def test_the_step_is_the_newest_possible_and_the_pulls_complete_it(
    layout: Layout, data: st.DataObject
) -> None:
    backup = backup_placement(layout)
    random = data.draw(st.randoms(use_true_random=False))
    density = data.draw(st.sampled_from([0.1, 0.6, 0.95]))
    memory = full_memory(layout, backup, own={4, 5, 6}, copy={3, 4, 5})
    for of_slot in memory.values():
        for rank in list(of_slot):
            of_slot[rank] = {step for step in of_slot[rank] if random.random() < density}
    plan = plan_restore(reports(memory), machines(layout), layout, backup)
    possible = [
        step
        for step in (3, 4, 5, 6)
        if all(
            any(step in of_slot.get(rank, ()) for of_slot in memory.values())
            for rank in range(layout.world_size)
        )
    ]
    assert plan.step == max(possible, default=FROM_THE_BEGINNING)
    if possible:
        assert not plan.missing
        after = apply(plan, memory, layout)
        for slot in range(layout.num_machines):
            assert wanted_by(layout, backup, slot) <= set(after[slot])
    else:
        assert not plan.pulls
        anything = any(steps for of_slot in memory.values() for steps in of_slot.values())
        assert bool(plan.missing) == anything
