"""Copies of committed shards that nobody overwrites: what is read for longer than a step lasts.

The copy is made in the thread that hears what the shard's rank says, before it hears the next
thing. A rank overwrites a slot only after all ranks have saved the step after it, which this rank
says to that same thread: so the copy comes first, whatever either of them does. Only where a
backup's time runs out meanwhile may the rank get ahead; then the copy is no good, and is dropped.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

from everstep.core.errors import TransientError
from everstep.core.shard import Region, Shard

logger = logging.getLogger(__name__)

SHELF_LIFE_S = 120.0
"""How long a step is kept for somebody who has asked for it."""

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


def take_snapshot(view: Region, rank: int, step: int, available_bytes: int) -> Snapshot:
    """Copy the step's shard; other threads run meanwhile.

    Args:
        view: Where it is.
        rank: Whose it is.
        step: Which step.
        available_bytes: How much memory may still be taken.

    Raises:
        TransientError: There is no memory for it, or it was overwritten.
    """
    found = view.find(step)
    if found is None:
        raise TransientError(f"step {step} of rank {rank} is no longer in memory")
    slot, shard = found
    if available_bytes < shard.body_bytes:
        raise TransientError(
            f"no memory for a copy of rank {rank}'s {shard.body_bytes / 2**20:.1f} MiB"
        )
    snapshot = Snapshot(shard)
    body = view.body(slot)[: shard.body_bytes]
    try:
        for start in range(0, len(body), _CHUNK_BYTES):
            _write(snapshot.fd, body[start : start + _CHUNK_BYTES], start)
    except OSError as error:
        raise TransientError(f"no memory for a copy of rank {rank}: {error}") from error
    if view.read_slot(slot) != shard:
        raise TransientError(f"step {step} of rank {rank} was overwritten meanwhile")
    return snapshot


class Shelf:
    """One step that somebody outside wants of all ranks here, for a while. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step: int | None = None
        self._snapshots: dict[int, Snapshot] = {}
        self._ends_at_s = 0.0

    def want(self, step: int) -> None:
        """Keep that step when it comes, and nothing else."""
        with self._lock:
            self._step = step
            self._snapshots = {}
            self._ends_at_s = time.monotonic() + SHELF_LIFE_S

    def offer(self, rank: int, step: int, view: Region, available_bytes: Callable[[], int]) -> None:
        """A rank has saved a step; it is copied if it is wanted and can be."""
        with self._lock:
            self._forget()
            if step != self._step:
                return
        try:
            snapshot = take_snapshot(view, rank, step, available_bytes())
        except (TransientError, OSError) as error:
            logger.warning("%s", error)
            return
        with self._lock:
            if step == self._step:
                self._snapshots[rank] = snapshot

    def find(self, rank: int, step: int) -> Snapshot | None:
        """The rank's step, if it is here."""
        with self._lock:
            self._forget()
            found = self._snapshots.get(rank)
        return found if found is not None and found.shard.step == step else None

    def shards(self) -> list[Shard]:
        """What is here, by rank."""
        with self._lock:
            self._forget()
            return [self._snapshots[rank].shard for rank in sorted(self._snapshots)]

    def _forget(self) -> None:
        if time.monotonic() > self._ends_at_s:
            self._step, self._snapshots = None, {}


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
