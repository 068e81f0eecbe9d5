"""Which stacks are ordinary in a hang, so that the others stand out.

Paper: ByteRobust 2025, section 5: "dominant groups" of equal stacks are healthy, the rest are
outliers. What makes a group dominant is not said there. Here a rank is ordinary when

1. at least half of all ranks that were judged stand where it stands, or
2. more than half of its data-parallel peers do, if at least three of them were judged.

Peers are the ranks at the same place of all model replicas: they run the same program on other
data, so each pipeline stage may have a stack of its own without standing out. With two replicas the
peers are a tie, and only the first rule tells; a share of less than half would not, because the
ranks that a hang reached are easily a third in small jobs. Where both halves of a job stand each in
a place of their own, all are ordinary, and stacks alone tell nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from everstep.core.groups import Layout

MIN_PEERS = 3
"""Two peers that differ, or one alone, have no majority."""

T = TypeVar("T")


def outliers(layout: Layout, places: Mapping[int, T]) -> tuple[int, ...]:
    """The ranks that are not ordinary by the rule above.

    Args:
        layout: The job.
        places: Where each judged rank stands, in any form that is equal for equal places.

    Returns:
        Ascending; empty when everybody is ordinary, or nobody is.
    """
    counts = Counter(places.values())
    common = {place for place, count in counts.items() if 2 * count >= len(places)}
    odd = [rank for rank, place in places.items() if place not in common]
    if layout.dp >= MIN_PEERS:
        by_column: dict[int, Counter[T]] = {}
        column_of = {rank: _column(layout, rank) for rank in places}
        for rank, place in places.items():
            by_column.setdefault(column_of[rank], Counter())[place] += 1
        odd = [rank for rank in odd if not _is_majority(by_column[column_of[rank]], places[rank])]
    return tuple(sorted(odd)) if len(odd) < len(places) else ()


def _column(layout: Layout, rank: int) -> int:
    """The first of the rank's data-parallel peers, which stands for all of them."""
    stride = layout.strides.get("dp", 1)
    return rank - rank // stride % layout.dp * stride


def _is_majority(peers: Counter[T], place: T) -> bool:
    total = peers.total()
    return total >= MIN_PEERS and 2 * peers[place] > total
