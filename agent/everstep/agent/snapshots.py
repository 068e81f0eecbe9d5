"""Copies of committed shards that nobody overwrites: what is read for longer than a step lasts.

The copy is made in the thread that hears what the shard's rank says, before it hears the next
thing. A rank overwrites a slot only after all ranks have saved the step after it, which this rank
says to that same thread: so the copy comes first, whatever either of them does. Only where a
backup's time runs out meanwhile may the rank get ahead; then the copy is no good, and is dropped.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from everstep.agent.shards import SharedRegion, free_memory_bytes
from everstep.core.errors import TransientError
from everstep.core.shard import Shard

_CHUNK_BYTES = 8 * 1024 * 1024


class Snapshot:
    """A rank's shard in memory of its own.

    Attributes:
        shard: What it is.
        fd: The memory; closed with this object.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.fd = os.memfd_create(f"everstep-snapshot-{shard.rank}", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.fd)


def take_snapshot(
    region: SharedRegion, step: int, available_bytes: Callable[[], int] = free_memory_bytes
) -> Snapshot:
    """Copy the step's shard; other threads run meanwhile.

    Args:
        region: Where it is.
        step: Which step.
        available_bytes: Tells how much memory may still be taken.

    Raises:
        TransientError: There is no memory for it, or it was overwritten.
    """
    found = region.view.find(step)
    if found is None:
        raise TransientError(f"step {step} of rank {region.rank} is no longer in memory")
    slot, shard = found
    if available_bytes() < shard.body_bytes:
        raise TransientError(
            f"no memory for a copy of rank {region.rank}'s {shard.body_bytes / 2**20:.1f} MiB"
        )
    snapshot = Snapshot(shard)
    body = region.view.body(slot)[: shard.body_bytes]
    try:
        for start in range(0, len(body), _CHUNK_BYTES):
            _write(snapshot.fd, body[start : start + _CHUNK_BYTES], start)
    except OSError as error:
        raise TransientError(f"no memory for a copy of rank {region.rank}: {error}") from error
    if region.view.read_slot(slot) != shard:
        raise TransientError(f"step {step} of rank {region.rank} was overwritten meanwhile")
    return snapshot


def copy_out(fd: int, place: memoryview) -> None:
    """Read memory that another process filled.

    Raises:
        TransientError: It is shorter than the place.
    """
    done = 0
    while done < len(place):
        count = os.preadv(fd, [place[done : done + _CHUNK_BYTES]], done)
        if count == 0:
            raise TransientError(f"{done} B where {len(place)} belong")
        done += count


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count
