"""Whether ranks moved between dumps that were taken some seconds apart.

A rank that waits or is stuck stands where it stood. Only places count, so that the turns of a
waiting loop are no movement: one place that calls the other is the same place a moment later.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from everstep.core.stacks.dump import Snapshot
from everstep.core.stacks.place import Place

MOVING_RATIO = 0.5
"""From this part of the ranks on, the job goes on: in a hang all but the culprits stand still."""


def moved_ranks(places: Sequence[Mapping[int, Place]]) -> tuple[tuple[int, ...], int]:
    """Ranks that were in different places, and how many could be compared.

    Args:
        places: By dump, in order of time: where each rank stood.
    """
    moved: set[int] = set()
    compared: set[int] = set()
    for before, after in itertools.pairwise(places):
        for rank, place in before.items():
            other = after.get(rank)
            if other is None:
                continue
            compared.add(rank)
            if other.key is not place.key and not place.is_near(other):
                moved.add(rank)
    return tuple(sorted(moved)), len(compared)


def ranks_that_completed(before: Snapshot, after: Snapshot) -> tuple[tuple[int, ...], int]:
    """Ranks that finished a collective in between by their recorders, and how many have one."""
    completed: list[int] = []
    compared = 0
    for rank, recorder in before.recorders.items():
        later = after.recorders.get(rank)
        if later is None:
            continue
        compared += 1
        done = {group.name: group.completed for group in recorder.groups}
        if any(group.completed > done.get(group.name, 0) for group in later.groups):
            completed.append(rank)
    return tuple(completed), compared


def goes_on(moved: int, compared: int) -> bool:
    """Whether that many of those that were compared mean that the job is not stuck."""
    return compared > 0 and moved >= MOVING_RATIO * compared
