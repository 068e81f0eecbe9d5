"""On whose machine the backup copy of each rank's state lies.

Over-eviction takes the machines of a whole parallel group at once, so a copy is of use only on a
machine that none of the rank's groups occupies. Called when a spec is planned, and by the job to
tell agents what to hold and where to pull from. `exposed_groups` says what placement cannot help.

Paper: ByteRobust 2025, section 6.3 and Fig. 9. The paper gives the example and the principle; the
general rule, the fallbacks and the repair of layouts that straddle machines are ours.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from everstep.core.groups import Group, Layout

_MOVES = ("dp", "pp", "cp", "ep", "tp")
"""Dimensions by how gladly a copy moves along them: the paper's two first, tp last."""

_EVICTED_WHOLE = frozenset({"tp", "pp", "dp"})
"""Groups that a copy must be outside of before cp and ep groups count."""


@dataclass(frozen=True)
class BackupPlan:
    """Who keeps whose copy.

    Attributes:
        holder: For each rank the rank whose machine holds its copy.
        unprotected: For each rank without a holder the reason.
    """

    holder: Mapping[int, int]
    unprotected: Mapping[int, str]

    def lost_with(self, layout: Layout, machines: Collection[int]) -> tuple[int, ...]:
        """The ranks whose state is gone from memory when these slots are evicted together."""
        gone = set(machines)
        return tuple(
            rank
            for slot in sorted(gone)
            for rank in layout.ranks_of(slot)
            if rank not in self.holder or layout.machine_of(self.holder[rank]) in gone
        )

    def held_by(self, layout: Layout, slot: int) -> tuple[int, ...]:
        """The ranks whose copies the machine in this slot holds, ascending."""
        return tuple(
            sorted(rank for by in layout.ranks_of(slot) for rank in self._kept_for.get(by, ()))
        )

    @cached_property
    def _kept_for(self) -> Mapping[int, list[int]]:
        """The plan the other way round, so that asking every slot stays cheap."""
        kept_for: dict[int, list[int]] = {}
        for rank, by in self.holder.items():
            kept_for.setdefault(by, []).append(rank)
        return kept_for


@dataclass(frozen=True, slots=True)
class ExposedGroup:
    """A parallel group that cannot be evicted whole without losing all copies of some state.

    Attributes:
        group: The group.
        lost: The ranks whose state would be gone, ascending; not all need be members.
        reason: Why no copy of them lies elsewhere.
    """

    group: Group
    lost: tuple[int, ...]
    reason: str


def exposed_groups(
    layout: Layout, plan: BackupPlan, in_parts: bool = False
) -> tuple[ExposedGroup, ...]:
    """The groups of every dimension of more than one coordinate whose eviction loses state.

    With every other group the plan holds what it is for: whichever is evicted, each shard has a
    copy left.

    Args:
        layout: The job's ranks.
        plan: Who keeps whose copy.
        in_parts: Whether each rank keeps a part of what its DP group has in common: then with a
            shard the state of the whole group is lost.
    """
    exposed: list[ExposedGroup] = []
    for kind in layout.wide_kinds:
        lost_with: dict[tuple[int, ...], tuple[int, ...]] = {}
        for ranks in layout.groups(kind):
            group = Group(kind, ranks, layout.machines_of(ranks))
            if group.machines not in lost_with:
                lost_with[group.machines] = plan.lost_with(layout, group.machines)
            if lost := lost_with[group.machines]:
                reason = _why_exposed(layout, plan, group, lost)
                if in_parts:
                    groups = (layout.group("dp", rank) for rank in lost)
                    lost = tuple(sorted(set(itertools.chain.from_iterable(groups))))
                exposed.append(ExposedGroup(group, lost, reason))
    return tuple(exposed)


def _why_exposed(layout: Layout, plan: BackupPlan, group: Group, lost: Collection[int]) -> str:
    if any(rank in plan.unprotected for rank in lost):
        return "there is no backup"
    if len(group.machines) == layout.num_machines:
        return "it occupies all machines of the job"
    return "no machine lies outside all groups that meet on the machines of these ranks"


def no_backup(layout: Layout, reason: str) -> BackupPlan:
    """A plan under which nobody keeps a copy of anybody's state."""
    return BackupPlan({}, dict.fromkeys(range(layout.world_size), reason))


@functools.lru_cache(maxsize=8)
def backup_placement(layout: Layout) -> BackupPlan:
    """Places every rank's copy outside its TP, PP and DP groups wherever a machine is.

    A layout in which each dimension fills machines evenly follows one rule: move along dp and pp
    at once and keep everything else, so that all ranks of a machine share one peer and each
    machine holds as many copies as it has ranks. The faster of the two goes to its neighbour, the
    slower half-way round, which is also far away in the machine room; both are exchanges when the
    sizes are even, and cyclic shifts when they are odd. Where dp or pp has nowhere to go, cp, ep
    and tp stand in for it; with one dimension left the copy goes to the neighbour along it.

    Other layouts start from the same rule and search on from there, rank by rank, for a machine
    that as few groups as possible occupy and that is not full.

    Kept, since every attempt and incident of a job asks, and 9,600 ranks take 0.1 s.
    """
    if layout.num_machines == 1:
        return no_backup(layout, "the job has one machine, and a copy needs another one")
    neighbourhood = _Neighbourhood(layout)
    peer = _PeerRule(layout)
    held = [0] * layout.num_machines
    holder: dict[int, int] = {}
    for rank in range(layout.world_size):
        local_rank = rank % layout.gpus_per_machine
        # The machine's first rank asks the rule; the others stay with its peer where they can.
        near = layout.machine_of(peer.of(rank) if local_rank == 0 else holder[rank - 1])
        slot = _choose(neighbourhood.safest(rank), near, held, layout.gpus_per_machine)
        held[slot] += 1
        holder[rank] = slot * layout.gpus_per_machine + local_rank
    return BackupPlan(holder, {})


def _choose(safest: Collection[int], near: int, held: list[int], room: int) -> int:
    """The first machine from `near` onwards that has room, or else the emptiest one."""
    onwards = itertools.chain(range(near, len(held)), range(near))
    free = (slot for slot in onwards if slot in safest and held[slot] < room)
    emptiest = next(free, None)
    if emptiest is not None:
        return emptiest
    return min(safest, key=lambda slot: (held[slot], (slot - near) % len(held)))


class _PeerRule:
    """The paper's exchange, generalised: a bijection between ranks that ignores nobody's groups.

    Coordinates are moved in whole machines: with four stages of which a machine holds two, the
    neighbour of stage 0 is stage 2.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        extents = _extents(layout)
        blocks = {kind: layout.sizes[kind] // extents[kind] for kind in layout.order}
        moved = [kind for kind in _MOVES if blocks.get(kind, 1) > 1][:2]
        moved.sort(key=layout.order.index)
        # The distance to move by in blocks: the neighbour, and for the slower of two half-way.
        self._moves = [(kind, extents[kind], blocks[kind], 1) for kind in moved]
        if len(moved) == 2:
            slower = moved[1]
            self._moves[1] = (slower, extents[slower], blocks[slower], blocks[slower] // 2)

    def of(self, rank: int) -> int:
        """The rank that mirrors `rank`."""
        at = self._layout.coordinates(rank)
        for kind, extent, blocks, distance in self._moves:
            block, within = divmod(at[kind], extent)
            at[kind] = _moved(block, blocks, distance) * extent + within
        return self._layout.rank_at(at)


def _moved(index: int, size: int, distance: int) -> int:
    """Where `index` goes on a ring of `size`; an exchange when the size is even."""
    if size % 2 == 0 and distance == 1:
        return index ^ 1
    return (index + distance) % size


def _extents(layout: Layout) -> dict[str, int]:
    """How many coordinates of each dimension lie together on one machine."""
    extents: dict[str, int] = {}
    left = layout.gpus_per_machine
    for kind in layout.order:
        extents[kind] = math.gcd(layout.sizes[kind], left)
        # Past a dimension that goes on beyond the machine, nothing lies together any more.
        left = left // layout.sizes[kind] if left % layout.sizes[kind] == 0 else 1
    return extents


class _Neighbourhood:
    """Which machines a rank's groups occupy, and which are safest for its copy."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._slots = frozenset(range(layout.num_machines))
        self._occupied: dict[tuple[str, int], frozenset[int]] = {}
        # Equal sets as one, so that comparing them costs nothing with thousands of machines.
        self._sets: dict[frozenset[int], frozenset[int]] = {}
        self._beside: dict[int, Mapping[str, frozenset[frozenset[int]]]] = {}
        self._safest: dict[tuple[object, ...], frozenset[int]] = {}
        self._respected = list(_subsets_to_respect(layout.wide_kinds))

    def safest(self, rank: int) -> frozenset[int]:
        """Machines other than the rank's own that as few of its groups as possible occupy.

        Of those, the ones that no group of another rank on its machine occupies, if there are any:
        such a group takes the rank's own copy with it too.
        """
        slot = self._layout.machine_of(rank)
        occupied = {kind: self._machines(kind, rank) for kind in self._layout.wide_kinds}
        # In an aligned layout the same for all ranks of a machine.
        key = (slot, *occupied.values())
        if key not in self._safest:
            self._safest[key] = self._outside(slot, occupied)
        return self._safest[key]

    def _outside(self, slot: int, occupied: Mapping[str, frozenset[int]]) -> frozenset[int]:
        for kinds in self._respected:
            own = {occupied[kind] for kind in kinds}
            outside = self._slots.difference({slot}, *own)
            if outside:
                beside = self._machines_beside(slot)
                others = set[frozenset[int]]().union(*(beside[kind] for kind in kinds)) - own
                # An aligned layout has none, and may have ten thousand ranks.
                return (outside.difference(*others) or outside) if others else outside
        raise AssertionError("with two machines there is another one")

    def _machines_beside(self, slot: int) -> Mapping[str, frozenset[frozenset[int]]]:
        """By kind, what the groups of a machine's ranks occupy."""
        if slot not in self._beside:
            ranks = self._layout.ranks_of(slot)
            self._beside[slot] = {
                kind: frozenset(self._machines(kind, rank) for rank in ranks)
                for kind in self._layout.wide_kinds
            }
        return self._beside[slot]

    def _machines(self, kind: str, rank: int) -> frozenset[int]:
        key = (kind, rank)
        if key not in self._occupied:
            group = self._layout.group(kind, rank)
            machines = frozenset(self._layout.machines_of(group))
            machines = self._sets.setdefault(machines, machines)
            self._occupied.update(dict.fromkeys(((kind, member) for member in group), machines))
        return self._occupied[key]


def _subsets_to_respect(kinds: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Sets of groups to stay outside of, the best first.

    Giving up a cp or ep group costs less than any of the others. Among equals the group that is
    least likely to be evicted whole is given up first: the largest is dp, as a rule.
    """
    ordered = [kind for kind in _MOVES if kind in kinds]
    given_up = [
        subset
        for count in range(len(ordered) + 1)
        for subset in itertools.combinations(ordered, count)
    ]
    given_up.sort(key=lambda subset: (len(_EVICTED_WHOLE.intersection(subset)), len(subset)))
    for subset in given_up:
        yield tuple(kind for kind in ordered if kind not in subset)
