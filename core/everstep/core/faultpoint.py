"""Places in the life of a shard or a node at which a test can make something happen, as a kill.

A child process of a test appends to `hooks` before it begins; nobody else does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

MemoryPoint = Literal[
    # In the rank.
    "before_invalidate",
    "after_invalidate",
    "mid_copy",
    "after_copy",
    "after_commit",
    "before_announce",
    # In the agent of its machine.
    "before_send",
    "mid_send",
    "after_send",
    # In the agent of its backup's holder.
    "before_receive",
    "mid_receive",
    "after_receive",
    "before_ack",
]
StoragePoint = Literal[
    # In the process that saves a machine's part of a step to storage.
    "storage_before_seen",
    "storage_before_write",
    "storage_after_write",
    "storage_before_metadata",
    "storage_after_metadata",
]
ClusterPoint = Literal[
    # In the controller that takes a node out, or gives it back.
    "quarantine_before_mark",
    "quarantine_after_mark",
    "quarantine_after_condition",
    "evict_after_intent",
    "evict_after_eviction",
    "release_before_condition",
    "release_after_condition",
    "release_after_mark",
]
Point = MemoryPoint | StoragePoint | ClusterPoint
POINTS: tuple[MemoryPoint, ...] = get_args(MemoryPoint)
STORAGE_POINTS: tuple[StoragePoint, ...] = get_args(StoragePoint)
CLUSTER_POINTS: tuple[ClusterPoint, ...] = get_args(ClusterPoint)

hooks: list[Callable[[Point], None]] = []


def reached(point: Point) -> None:
    """Tell the hooks that this process has come to that point."""
    for hook in hooks:
        hook(point)
