from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from tests.unit.layouts import FIG_7, FIG_9, FIG_9_MEGATRON, PAPER_ORDER, PRODUCTION, layouts

from everstep.core.groups import Layout
from everstep.core.placement import BackupPlan, backup_placement, exposed_groups, no_backup


def machine_map(layout: Layout, plan: BackupPlan) -> list[int]:
    """For each machine the one that holds its copies; fails when there are several."""
    peers: list[int] = []
    for slot in range(layout.num_machines):
        [peer] = {layout.machine_of(plan.holder[rank]) for rank in layout.ranks_of(slot)}
        peers.append(peer)
    return peers


def copies_held(layout: Layout, plan: BackupPlan) -> Counter[int]:
    return Counter(layout.machine_of(holder) for holder in plan.holder.values())


def machines_outside(layout: Layout, rank: int, kinds: tuple[str, ...]) -> set[int]:
    outside = set(range(layout.num_machines)) - {layout.machine_of(rank)}
    return outside.difference(*(layout.machines_of_group(kind, rank) for kind in kinds))


@pytest.mark.parametrize("layout", [FIG_9, FIG_9_MEGATRON])
def test_figure_9_ranks_8_and_9_exchange_with_2_and_3(layout: Layout) -> None:
    holder = backup_placement(layout).holder
    assert (holder[8], holder[9], holder[2], holder[3]) == (2, 3, 8, 9)


@pytest.mark.parametrize(
    ("layout", "peers"),
    [
        pytest.param(FIG_9, [5, 4, 7, 6, 1, 0, 3, 2], id="other replica, neighbouring stage"),
        pytest.param(FIG_9_MEGATRON, [5, 4, 7, 6, 1, 0, 3, 2], id="neighbour, stage half-way"),
        pytest.param(
            FIG_7,
            [9, 8, 11, 10, 13, 12, 15, 14, 1, 0, 3, 2, 5, 4, 7, 6],
            id="replica half-way round, neighbouring stage",
        ),
        pytest.param(
            Layout(2, tp=2, pp=3, dp=3, order=PAPER_ORDER),
            [4, 5, 3, 7, 8, 6, 1, 2, 0],
            id="odd sizes: cyclic shifts",
        ),
        pytest.param(
            Layout(8, tp=4, pp=4, dp=2, order=PAPER_ORDER),
            [3, 2, 1, 0],
            id="two stages a machine: the other half of the stages",
        ),
        pytest.param(Layout(2, tp=2, dp=4), [1, 0, 3, 2], id="no pp: neighbour along dp"),
        pytest.param(Layout(2, tp=2, pp=3), [1, 2, 0], id="no dp, odd: next along pp"),
        pytest.param(Layout(1, tp=2, dp=2), [3, 2, 1, 0], id="tp stands in for pp"),
        pytest.param(Layout(1, cp=2, dp=2), [3, 2, 1, 0], id="cp stands in for pp"),
        pytest.param(Layout(8, tp=4, pp=2, dp=2, order=PAPER_ORDER), [1, 0], id="pp in a machine"),
        pytest.param(Layout(4, tp=8), [1, 0], id="tp alone over two machines"),
    ],
)
def test_worked_examples(layout: Layout, peers: list[int]) -> None:
    plan = backup_placement(layout)
    assert machine_map(layout, plan) == peers
    assert not plan.unprotected
    assert all(
        holder % layout.gpus_per_machine == rank % layout.gpus_per_machine
        for rank, holder in plan.holder.items()
    )


def test_a_single_machine_leaves_every_rank_unprotected_and_says_why() -> None:
    plan = backup_placement(Layout(8, tp=8))
    assert not plan.holder
    assert sorted(plan.unprotected) == list(range(8))
    assert "one machine" in plan.unprotected[0]


@given(layouts(min_machines=2))
@settings(deadline=None, max_examples=200)
def test_every_copy_is_as_far_outside_as_the_layout_allows(layout: Layout) -> None:
    plan = backup_placement(layout)
    assert sorted(plan.holder) == list(range(layout.world_size))
    for rank, holder in plan.holder.items():
        slot = layout.machine_of(holder)
        assert slot != layout.machine_of(rank)
        # cp and ep groups only where that costs nothing.
        for kinds in (("tp", "pp", "dp"), ("tp", "pp", "dp", "cp", "ep")):
            outside = machines_outside(layout, rank, kinds)
            assert not outside or slot in outside


@given(layouts(min_machines=2))
@settings(deadline=None, max_examples=200)
def test_copies_are_spread_evenly(layout: Layout) -> None:
    held = copies_held(layout, backup_placement(layout))
    assert max(held.values()) <= 2 * layout.gpus_per_machine


@given(layouts(min_machines=2))
@settings(deadline=None)
def test_where_dimensions_fill_machines_each_machine_has_one_peer(layout: Layout) -> None:
    left = layout.gpus_per_machine
    for kind in layout.order:
        size = layout.sizes[kind]
        assume(left % size == 0 or size % left == 0)
        left = max(1, left // size)
    plan = backup_placement(layout)
    assert sorted(machine_map(layout, plan)) == list(range(layout.num_machines))


@given(layouts(min_machines=2))
@settings(deadline=None)
def test_losing_one_machine_loses_no_state(layout: Layout) -> None:
    plan = backup_placement(layout)
    assert all(not plan.lost_with(layout, [slot]) for slot in range(layout.num_machines))


@pytest.mark.parametrize("order", [PAPER_ORDER, ("tp", "dp", "pp")])
def test_any_group_can_be_evicted_whole_where_a_machine_is_outside(order: tuple[str, ...]) -> None:
    """All layouts of tp, pp and dp of 1, 2, 4, 8 on machines of 1, 2, 4, 8 ranks."""
    sizes = (1, 2, 4, 8)
    checked = 0
    for gpus, tp, pp, dp in itertools.product(sizes, repeat=4):
        if tp * pp * dp % gpus:
            continue
        layout = Layout(gpus, tp=tp, pp=pp, dp=dp, order=order)
        plan = backup_placement(layout)
        exposed = {one.group.ranks: one for one in exposed_groups(layout, plan)}
        for kind in PAPER_ORDER:
            for ranks in layout.groups(kind):
                machines = layout.machines_of(ranks)
                lost = shards_without_a_copy(layout, plan, set(machines))
                # Every shard on its machines is possible to save, or none is.
                assert bool(lost) == (len(machines) == layout.num_machines), (layout, ranks)
                if len(ranks) > 1:
                    assert lost == (list(exposed[ranks].lost) if ranks in exposed else [])
                    checked += 1
    assert checked > 8_000


def shards_without_a_copy(layout: Layout, plan: BackupPlan, gone: set[int]) -> list[int]:
    """By looking at every rank's two places, one by one."""
    return [
        rank
        for rank in range(layout.world_size)
        if rank // layout.gpus_per_machine in gone
        and (rank not in plan.holder or plan.holder[rank] // layout.gpus_per_machine in gone)
    ]


@given(layouts())
@settings(deadline=None, max_examples=100)
def test_exposed_groups_are_those_whose_eviction_loses_state(layout: Layout) -> None:
    plan = backup_placement(layout)
    exposed = exposed_groups(layout, plan)
    assert {one.group.ranks: list(one.lost) for one in exposed} == {
        ranks: lost
        for kind in layout.wide_kinds
        for ranks in layout.groups(kind)
        if (lost := shards_without_a_copy(layout, plan, set(layout.machines_of(ranks))))
    }


def test_why_a_group_is_exposed() -> None:
    def reasons(layout: Layout, plan: BackupPlan) -> set[str]:
        return {one.reason for one in exposed_groups(layout, plan)}

    assert reasons(FIG_9, backup_placement(FIG_9)) == set()
    assert reasons(FIG_9, no_backup(FIG_9, "switched off")) == {"there is no backup"}
    pipeline = Layout(1, pp=4)
    everything = "it occupies all machines of the job"
    assert reasons(pipeline, backup_placement(pipeline)) == {everything}
    # Rank 3's own groups leave it machine 0, which goes with the pipeline of rank 2 beside it.
    straddling = Layout(2, pp=3, dp=2, order=("pp", "dp"))
    first = exposed_groups(straddling, backup_placement(straddling))[0]
    assert (first.group.ranks, first.group.machines, first.lost) == ((0, 1, 2), (0, 1), (3,))
    assert first.reason.startswith("no machine lies outside all groups that meet on the machines")


def test_a_copy_is_outside_the_groups_of_ranks_on_the_same_machine_too() -> None:
    # Rank 35 shares machine 17 with rank 34, whose pipeline is 28, 31, 34.
    layout = Layout(2, tp=3, pp=3, dp=4, order=PAPER_ORDER)
    holder = backup_placement(layout).holder[35]
    assert layout.machine_of(holder) not in layout.machines_of((28, 31, 34))
    assert exposed_groups(layout, backup_placement(layout)) == ()


@pytest.mark.parametrize("kind", ["tp", "pp", "dp"])
def test_evicting_any_group_of_figure_7_whole_loses_no_state(kind: str) -> None:
    plan = backup_placement(FIG_7)
    for group in FIG_7.groups(kind):
        assert plan.lost_with(FIG_7, FIG_7.machines_of(group)) == ()


def test_evicting_both_ends_of_an_exchange_loses_both() -> None:
    plan = backup_placement(FIG_9)
    assert plan.lost_with(FIG_9, {4, 1}) == (2, 3, 8, 9)
    assert plan.held_by(FIG_9, 4) == (2, 3)


def test_no_backup_protects_nobody() -> None:
    plan = no_backup(FIG_9, "switched off")
    assert plan.lost_with(FIG_9, {0}) == (0, 1)
    assert plan.unprotected[15] == "switched off"


def test_a_layout_that_straddles_machines_is_repaired_rank_by_rank() -> None:
    # Three stages on machines of two ranks: no exchange of whole machines can be right.
    layout = Layout(2, pp=3, dp=4, order=("pp", "dp"))
    plan = backup_placement(layout)
    peers = {layout.machine_of(plan.holder[rank]) for rank in layout.ranks_of(0)}
    assert len(peers) == 2
    for rank, holder in plan.holder.items():
        assert layout.machine_of(holder) in machines_outside(layout, rank, ("pp", "dp"))


def test_production_scale_takes_under_two_seconds() -> None:
    # Of this process: others may keep the machine busy.
    began_s = time.process_time()
    plan = backup_placement(PRODUCTION)
    assert time.process_time() - began_s < 2.0
    for slot in (0, 1199):
        assert all(slot == plan.holder[rank] // 8 for rank in plan.held_by(PRODUCTION, slot))
    held = copies_held(PRODUCTION, plan)
    assert set(held.values()) == {8}
    assert all(plan.holder[holder] == rank for rank, holder in plan.holder.items())
    # Half of the replicas away: another switch, another row.
    assert machine_map(PRODUCTION, plan)[0] == 601
