"""Places in the life of a shard at which a test can make something happen, as a kill.

A child process of a test appends to `hooks` before it begins; nobody else does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

Point = Literal[
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
POINTS: tuple[Point, ...] = get_args(Point)

hooks: list[Callable[[Point], None]] = []


def reached(point: Point) -> None:
    """Tell the hooks that this process has come to that point."""
    for hook in hooks:
        hook(point)
