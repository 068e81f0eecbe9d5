"""From suspect ranks to the machines that are taken out with them.

Paper: ByteRobust 2025, section 5: the parallel group that all outliers share is evicted as a whole.
Ours are the limits: one machine needs no group; a group that is most of the job, or of which only a
small part is suspected on evidence of its own, says nothing, and is cut back to what is suspected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core.groups import Group, Layout

MACHINE = "machine"
SEVERAL = "several"


@dataclass(frozen=True, slots=True)
class Domain:
    """What is evicted together.

    Attributes:
        kind: The kind of parallel group that the suspects share, several joined with "+" for a
            block; "machine" for one machine that holds no whole group; "several" when suspects
            share no group that is worth evicting.
        ranks: Members of the groups of this kind on these machines that a suspect is in.
        machines: Slots to evict, ascending.
        num_parts: 1 for a group that all suspects share; more for parts that are evicted side by
            side, one a model replica.
    """

    kind: str
    ranks: tuple[int, ...]
    machines: tuple[int, ...]
    num_parts: int = 1


def domain_of(layout: Layout, suspects: Sequence[int], each_on_evidence: bool) -> Domain | None:
    """The smallest set of machines that holds all suspects and leaves most of the job.

    Args:
        layout: The job.
        suspects: At least one rank.
        each_on_evidence: Whether there is evidence against each single rank; then a group is only
            taken whole when half of its machines are suspected.

    Returns:
        None when it would be more than half of the job's machines, unless that is one machine.
    """
    shared = _shared(layout, suspects, each_on_evidence)
    if shared is not None:
        return shared
    # Suspects without a group of their own: one part for each model replica, evicted side by side.
    replicas: dict[int, list[int]] = {}
    for rank in suspects:
        replicas.setdefault(layout.coordinates(rank)["dp"], []).append(rank)
    parts = [
        _shared(layout, part, each_on_evidence) or _alone(layout, part)
        for part in replicas.values()
    ]
    machines = tuple(sorted({slot for part in parts for slot in part.machines}))
    if 2 * len(machines) > layout.num_machines:
        return None
    ranks = tuple(sorted({rank for part in parts for rank in part.ranks}))
    kinds = {part.kind for part in parts}
    return Domain(kinds.pop() if len(kinds) == 1 else SEVERAL, ranks, machines, len(parts))


def _alone(layout: Layout, suspects: Sequence[int]) -> Domain:
    machines = layout.machines_of(suspects)
    ranks = [rank for slot in machines for rank in layout.ranks_of(slot)]
    return Domain(MACHINE if len(machines) == 1 else SEVERAL, tuple(ranks), machines)


def _shared(layout: Layout, suspects: Sequence[int], each_on_evidence: bool) -> Domain | None:
    machines = layout.machines_of(suspects)
    group = layout.smallest_covering_group(machines)
    if group is None:
        return None
    if len(machines) == 1:
        if group.machines == machines:
            return Domain(group.kind, _members(layout, group, suspects), machines)
        return _alone(layout, suspects)
    if 2 * len(group.machines) > layout.num_machines:
        return None
    if each_on_evidence and 2 * len(machines) < len(group.machines):
        return None
    return Domain(group.kind, _members(layout, group, suspects), group.machines)


def _members(layout: Layout, group: Group, suspects: Sequence[int]) -> tuple[int, ...]:
    kinds = group.kind.split("+")
    members = {member for rank in suspects for member in layout.block(kinds, rank)}
    return tuple(sorted(m for m in members if layout.machine_of(m) in group.machines))
