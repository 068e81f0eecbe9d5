"""From which step to restart, and who fetches which shard from whom.

Called by the recovery after every machine has stopped and reported what its memory holds. Only
machines of the new assignment count: whatever an evicted machine still holds is not asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from everstep.core.groups import Layout
from everstep.core.model import MachineInfo
from everstep.core.orders import FROM_THE_BEGINNING, Loan, MachineReport, Pull
from everstep.core.placement import BackupPlan


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """How to restart.

    Attributes:
        step: Newest step of which every rank's shard is in some assigned machine's memory, or
            FROM_THE_BEGINNING when there is none.
        pulls: What each machine fetches, by its name and then by rank; machines that hold all
            they must at `step` are left out.
        missing: For each rank that stands in the way of a restart from memory the reason. Empty
            when `step` is a real one, and when nobody holds anything, as at the first start.
        loans: What each machine fetches besides, by its name and then by source: what other ranks
            keep for the DP groups of its own. Machines that need nothing are left out.
    """

    step: int
    pulls: Mapping[str, tuple[Pull, ...]]
    missing: Mapping[int, str]
    loans: Mapping[str, tuple[Loan, ...]] = field(default_factory=dict[str, tuple[Loan, ...]])


def plan_restore(
    reports: Iterable[MachineReport],
    slots: Sequence[MachineInfo],
    layout: Layout,
    backup: BackupPlan,
) -> RestorePlan:
    """Chooses the newest step that all ranks can get, and the fewest transfers that lead there.

    At that step each machine must hold the shards of its own ranks, and of those whose backup it
    keeps under the new assignment. What it lacks it pulls from the rank's own machine if that has
    it, else from the holder that has been asked for least so far.

    Ranks whose step is kept in parts also need, to restore it, the parts of their whole DP group.
    Their machine borrows those that are not of its own ranks, from the same sources.

    Args:
        reports: What the machines hold; those of machines outside `slots` are ignored.
        slots: The new assignment: machines by slot.
        layout: The job's ranks.
        backup: Who keeps whose copy.

    Raises:
        ValueError: The number of slots is not that of the layout's machines.
    """
    if len(slots) != layout.num_machines:
        raise ValueError(f"{len(slots)} slots for {layout.num_machines} machines")
    held = _Held(reports, slots)
    common = held.steps(0).intersection(*map(held.steps, range(layout.world_size)))
    if common:
        step = max(common)
        asked: Counter[int] = Counter()
        pulls = _pulls(step, held, slots, layout, backup, asked)
        return RestorePlan(step, pulls, {}, _loans(step, held, slots, layout, asked))
    return RestorePlan(FROM_THE_BEGINNING, {}, _missing(held, slots, layout, backup))


def is_all_gone(reports: Sequence[MachineReport], newest_step: int) -> bool:
    """Whether something was saved of which no machine's memory holds a copy any more.

    Machines whose ranks ran until now and that hold nothing tell of a script that saves nothing.

    Args:
        reports: What the machines hold; none of those whose memory went with them.
        newest_step: That ranks are known to have finished or restored; 0 if none.
    """
    kept = any(copy.steps for report in reports for copy in report.copies)
    ran = any(report.stopped or report.exits for report in reports)
    return newest_step > 0 and not kept and not ran


_NOTHING: Mapping[int, set[int]] = {}
_NOBODY: Set[int] = frozenset()


class _Held:
    """Which slots hold which step of a rank's state."""

    def __init__(self, reports: Iterable[MachineReport], slots: Sequence[MachineInfo]) -> None:
        slot_of = {info.machine: slot for slot, info in enumerate(slots)}
        self._slots: dict[int, dict[int, set[int]]] = {}
        self._in_parts: set[tuple[int, int]] = set()
        for report in reports:
            if report.machine in slot_of:
                for copy in report.copies:
                    self._add(copy.rank, copy.steps, slot_of[report.machine])
                    for step in copy.in_parts:
                        self._in_parts.add((copy.rank, step))

    def _add(self, rank: int, steps: Iterable[int], slot: int) -> None:
        by_step = self._slots.setdefault(rank, {})
        for step in steps:
            # The state before the first step is what a script makes by itself.
            if step > FROM_THE_BEGINNING:
                by_step.setdefault(step, set()).add(slot)

    def steps(self, rank: int) -> set[int]:
        return set(self._slots.get(rank, {}))

    def at(self, rank: int, step: int) -> Set[int]:
        """The slots that hold this step."""
        return self._slots.get(rank, _NOTHING).get(step, _NOBODY)

    def any_in_parts(self) -> bool:
        """Whether any rank alone does not have all of its state, at any step."""
        return bool(self._in_parts)

    def is_in_parts(self, rank: int, step: int) -> bool:
        """Whether the rank alone does not have all of its state."""
        return (rank, step) in self._in_parts

    def best(self, rank: int, step: int, own: int, asked: Counter[int]) -> int:
        """The slot to get this step from."""
        sources = self.at(rank, step)
        source = own if own in sources else min(sources, key=lambda at: (asked[at], at))
        asked[source] += 1
        return source


def _pulls(
    step: int,
    held: _Held,
    slots: Sequence[MachineInfo],
    layout: Layout,
    backup: BackupPlan,
    asked: Counter[int],
) -> dict[str, tuple[Pull, ...]]:
    pulls: dict[str, tuple[Pull, ...]] = {}
    for slot, wanted in enumerate(_wanted(layout, backup)):
        found: list[Pull] = []
        for rank in wanted:
            if slot in held.at(rank, step):
                continue
            info = slots[held.best(rank, step, layout.machine_of(rank), asked)]
            found.append(Pull(rank, info.machine, info.host, info.transfer_port))
        if found:
            pulls[slots[slot].machine] = tuple(found)
    return pulls


def _loans(
    step: int,
    held: _Held,
    slots: Sequence[MachineInfo],
    layout: Layout,
    asked: Counter[int],
) -> dict[str, tuple[Loan, ...]]:
    """Machines whose ranks are of the same DP groups share all but what is their own.

    One by one it would take a step for each pair of ranks of a group; 9,600 ranks in groups of 150
    make over a million.
    """
    if not held.any_in_parts():
        return {}
    group_of = {rank: group for group in layout.groups("dp") for rank in group}
    shared: dict[tuple[int, ...], _Shared] = {}
    loans: dict[str, tuple[Loan, ...]] = {}
    for slot, here in enumerate(slots):
        own = layout.ranks_of(slot)
        groups = {group_of[rank] for rank in own if held.is_in_parts(rank, step)}
        key = tuple(sorted(group[0] for group in groups))
        if key not in shared:
            shared[key] = _Shared(step, held, slots, layout, asked, groups)
        found = shared[key].without(own)
        if found:
            loans[here.machine] = found
    return loans


class _Shared:
    """Who lends what to those whose ranks are of some DP groups."""

    def __init__(
        self,
        step: int,
        held: _Held,
        slots: Sequence[MachineInfo],
        layout: Layout,
        asked: Counter[int],
        groups: Iterable[Sequence[int]],
    ) -> None:
        self._source: dict[int, int] = {}
        ranks_at: dict[int, list[int]] = {}
        for rank in sorted(rank for group in groups for rank in group):
            source = held.best(rank, step, layout.machine_of(rank), asked)
            self._source[rank] = source
            ranks_at.setdefault(source, []).append(rank)
        self._loans = {
            at: Loan(tuple(ranks), slots[at].machine, slots[at].host, slots[at].transfer_port)
            for at, ranks in sorted(ranks_at.items())
        }

    def without(self, own: range) -> tuple[Loan, ...]:
        """All of it but what is of these ranks."""
        touched = {self._source[rank] for rank in own if rank in self._source}
        found: list[Loan] = []
        for at, loan in self._loans.items():
            if at not in touched:
                found.append(loan)
            elif others := tuple(rank for rank in loan.ranks if rank not in own):
                found.append(replace(loan, ranks=others))
        return tuple(found)


def _wanted(layout: Layout, backup: BackupPlan) -> list[list[int]]:
    """For each slot the ranks whose shards it must hold, ascending."""
    wanted = [list(layout.ranks_of(slot)) for slot in range(layout.num_machines)]
    for rank, holder in backup.holder.items():
        wanted[layout.machine_of(holder)].append(rank)
    return [sorted(ranks) for ranks in wanted]


def _missing(
    held: _Held, slots: Sequence[MachineInfo], layout: Layout, backup: BackupPlan
) -> dict[int, str]:
    steps = {rank: held.steps(rank) for rank in range(layout.world_size)}
    if not any(steps.values()):
        return {}
    lost = [rank for rank, of_rank in steps.items() if not of_rank]
    if lost:
        return {rank: _no_copy(rank, slots, layout, backup) for rank in lost}
    # Every rank has something, but no step is whole: name those that lack the best one.
    votes = Counter(step for of_rank in steps.values() for step in of_rank)
    best = max(votes, key=lambda step: (votes[step], step))
    others = f"while {votes[best]} other ranks have step {best}"
    return {
        rank: f"its copies are of step {', '.join(map(str, sorted(of_rank)))}, {others}"
        for rank, of_rank in steps.items()
        if best not in of_rank
    }


def _no_copy(rank: int, slots: Sequence[MachineInfo], layout: Layout, backup: BackupPlan) -> str:
    own = layout.machine_of(rank)
    places = f"its own machine (slot {own}, now {slots[own].machine})"
    if rank not in backup.holder:
        return f"no copy: {places} holds none, and it has no backup: {backup.unprotected[rank]}"
    keeper = layout.machine_of(backup.holder[rank])
    return (
        f"no copy: neither {places} nor its backup's"
        f" (slot {keeper}, now {slots[keeper].machine}) holds one"
    )
