from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.unit.layouts import FIG_7, FIG_9, FIG_9_MEGATRON, PAPER_ORDER, PRODUCTION, layouts

from everstep.core.groups import KINDS, Group, Layout


@given(layouts())
@settings(deadline=None)
def test_coordinates_and_ranks_map_onto_each_other(layout: Layout) -> None:
    seen = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert [layout.rank_at(coordinates) for coordinates in seen] == list(range(layout.world_size))
    for coordinates in seen:
        assert all(0 <= coordinates[kind] < layout.sizes[kind] for kind in KINDS)


@given(layouts())
@settings(deadline=None)
def test_groups_of_every_kind_partition_the_ranks(layout: Layout) -> None:
    for kind in KINDS:
        groups = layout.groups(kind)
        assert sorted(itertools.chain(*groups)) == list(range(layout.world_size))
        for group in groups:
            assert len(group) == layout.sizes[kind]
            assert list(group) == sorted(group)
            assert all(layout.group(kind, rank) == group for rank in group)


@given(layouts(), st.data())
@settings(deadline=None)
def test_members_of_a_group_differ_in_its_dimension_only(
    layout: Layout, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, layout.world_size - 1))
    for kind in KINDS:
        members = [layout.coordinates(member) for member in layout.group(kind, rank)]
        assert [coordinates[kind] for coordinates in members] == list(range(layout.sizes[kind]))
        rests = [coordinates | {kind: 0} for coordinates in members]
        assert all(rest == rests[0] for rest in rests)


def test_the_first_dimension_of_the_order_varies_fastest() -> None:
    for order in itertools.permutations(PAPER_ORDER):
        layout = Layout(1, tp=2, pp=3, dp=4, order=order)
        assert layout.coordinates(1)[order[0]] == 1
        slowest = layout.coordinates(layout.world_size - 1)[order[2]]
        assert layout.coordinates(layout.world_size // layout.sizes[order[2]])[order[2]] == 1
        assert slowest == layout.sizes[order[2]] - 1


def test_figure_7_puts_a_pipeline_on_four_machines_in_a_row() -> None:
    assert FIG_7.world_size == 32
    assert FIG_7.num_machines == 16
    for rank in range(FIG_7.world_size):
        at = FIG_7.coordinates(rank)
        assert FIG_7.machine_of(rank) == 4 * at["dp"] + at["pp"]
    assert FIG_7.machines_of_group("pp", 24) == (12, 13, 14, 15)
    assert FIG_7.machines_of_group("dp", 24) == (0, 4, 8, 12)
    assert FIG_7.machines_of_group("tp", 24) == (12,)


def test_figure_7_finds_the_pipeline_that_the_outliers_share() -> None:
    found = FIG_7.smallest_covering_group({12, 13, 14, 15})
    assert found == Group("pp", (24, 26, 28, 30), (12, 13, 14, 15))
    assert FIG_7.smallest_covering_group({15, 13}) == found


def test_figure_9_coordinates_in_both_orders() -> None:
    assert FIG_9.coordinates(8) == {"tp": 0, "cp": 0, "ep": 0, "dp": 1, "pp": 0}
    assert FIG_9.coordinates(2) == {"tp": 0, "cp": 0, "ep": 0, "dp": 0, "pp": 1}
    assert FIG_9_MEGATRON.coordinates(8) == {"tp": 0, "cp": 0, "ep": 0, "dp": 0, "pp": 2}
    assert FIG_9_MEGATRON.coordinates(2) == {"tp": 0, "cp": 0, "ep": 0, "dp": 1, "pp": 0}


@pytest.mark.parametrize(
    ("machines", "kind", "covered"),
    [
        ({5}, "tp", (5,)),
        ({1, 9}, "dp", (1, 5, 9, 13)),
        ({0, 5}, "pp+dp", tuple(range(16))),
        (set(range(16)), "pp+dp", tuple(range(16))),
    ],
)
def test_smallest_covering_group_of_figure_7(
    machines: set[int], kind: str, covered: tuple[int, ...]
) -> None:
    found = FIG_7.smallest_covering_group(machines)
    assert found is not None
    assert (found.kind, found.machines) == (kind, covered)


def test_smallest_covering_group_prefers_few_machines_then_the_order() -> None:
    # Two dp ranks share a machine, so dp groups take two machines and pp groups four.
    folded = Layout(2, dp=4, pp=4, order=("dp", "pp"))
    found = folded.smallest_covering_group({0})
    assert found == Group("dp", (0, 1, 2, 3), (0, 1))
    # One machine holds a tp and a cp group whole: the first of the order is named.
    both = Layout(4, tp=2, cp=2, dp=2)
    found = both.smallest_covering_group({1})
    assert found == Group("tp", (4, 5), (1,))


def test_smallest_covering_group_of_nothing_and_of_a_single_rank() -> None:
    assert FIG_7.smallest_covering_group(()) is None
    assert Layout(1).smallest_covering_group({0}) == Group("tp", (0,), (0,))


@given(layouts(), st.data())
@settings(deadline=None)
def test_smallest_covering_group_covers_and_no_single_dimension_does_better(
    layout: Layout, data: st.DataObject
) -> None:
    slots = st.integers(0, layout.num_machines - 1)
    machines = data.draw(st.sets(slots, min_size=1, max_size=4))
    found = layout.smallest_covering_group(machines)
    assert found is not None
    assert machines <= set(found.machines)
    assert found.machines == layout.machines_of(found.ranks)
    single = [
        len(occupied)
        for kind in layout.wide_kinds
        for group in layout.groups(kind)
        if machines <= set(occupied := layout.machines_of(group))
    ]
    if single:
        assert "+" not in found.kind
        assert len(found.machines) == min(single)
    elif layout.wide_kinds:
        assert "+" in found.kind


def test_production_scale_needs_no_search_over_all_groups() -> None:
    found = PRODUCTION.smallest_covering_group({8, 15})
    assert found is not None
    assert (found.kind, found.machines) == ("pp", tuple(range(8, 16)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tp": 0},
        {"gpus_per_machine": 0},
        {"order": ("tp", "xx")},
        {"order": ("tp", "tp", "dp")},
        {"tp": 2, "order": ("dp",)},
        {"tp": 3, "gpus_per_machine": 2},
    ],
)
def test_impossible_layouts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|leaves out|do not fill"):
        replace(Layout(1), **wrong)


def test_unknown_ranks_slots_and_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="rank 32"):
        FIG_7.coordinates(32)
    with pytest.raises(ValueError, match="no coordinate 2"):
        FIG_7.rank_at({"tp": 2})
    with pytest.raises(ValueError, match="'xx'"):
        FIG_7.group("xx", 0)
    with pytest.raises(ValueError, match="slots"):
        FIG_7.smallest_covering_group({16})
