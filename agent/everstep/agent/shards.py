"""The machine's checkpoint memory: shards of its own ranks, and those that it keeps for others.

Each rank's region is a memfd: memory without a name, alive as long as somebody has it open or
mapped. The agent owns it, so a rank's death loses nothing; and whoever dies, nothing stays behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

from everstep.agent.snapshots import Shelf
from everstep.core.errors import PermanentError, StaleAttempt, TransientError
from everstep.core.faultpoint import reached
from everstep.core.orders import ShardCopy
from everstep.core.shard import Origin, Region, Shard, checksum, format_region, region_bytes

logger = logging.getLogger(__name__)

_RECEIVE_PATIENCE_S = 2.0
"""How long a transfer waits for the end of one whose connection was given up."""

_NOWHERE = Origin()

Fill = Callable[[memoryview], None]
"""Writes a whole body into the memory that it is given, or raises."""


class SharedRegion:
    """One rank's region, in memory that other processes can map.

    Args:
        rank: Whose it is.
        slot_bytes: Largest body, > 0.

    Raises:
        OSError: There is no memory.
    """

    def __init__(self, rank: int, slot_bytes: int) -> None:
        size_bytes = region_bytes(slot_bytes)
        self.rank = rank
        self.fd = os.memfd_create(f"everstep-rank-{rank}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Readers and transfers may still use a region that the store has dropped.
        weakref.finalize(self, os.close, self.fd)
        # Taken at once: else a lack of memory would show itself as a signal in the rank.
        os.posix_fallocate(self.fd, 0, size_bytes)
        # A rank that shortened the file would kill whoever reads it.
        fcntl.fcntl(
            self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        self.size_bytes = size_bytes
        self.view: Region = format_region(memoryview(mmap.mmap(self.fd, size_bytes)), slot_bytes)
        self.receiving = threading.Lock()


class ShardStore:
    """All regions of one machine. Safe to use from several threads.

    Args:
        machine: Name of the machine, for messages.
        available_bytes: Tells how much memory may still be taken.
        origin: Job and layout whose shards are kept here.
    """

    def __init__(
        self,
        machine: str,
        available_bytes: Callable[[], int] | None = None,
        origin: Origin = _NOWHERE,
    ) -> None:
        self.machine = machine
        self.origin = origin
        self.shelf = Shelf()
        self._available_bytes = available_bytes or free_memory_bytes
        self._regions: dict[int, SharedRegion] = {}
        self._own: frozenset[int] = frozenset()
        self._attempt = 0
        self._lock = threading.RLock()

    @property
    def attempt(self) -> int:
        """Oldest attempt whose shards are still taken in from other machines."""
        with self._lock:
            return self._attempt

    @property
    def available_bytes(self) -> int:
        """Memory that may still be taken."""
        return self._available_bytes()

    @property
    def memory_bytes(self) -> int:
        """Memory that the regions take, all in all."""
        with self._lock:
            return sum(region.size_bytes for region in self._regions.values())

    def advance(self, attempt: int) -> None:
        """Refuse shards of older attempts from now on; a lower number changes nothing."""
        with self._lock:
            self._attempt = max(self._attempt, attempt)

    def region(self, rank: int) -> SharedRegion | None:
        """The rank's region, if there is one."""
        with self._lock:
            return self._regions.get(rank)

    def region_for(self, rank: int, slot_bytes: int) -> SharedRegion:
        """The rank's region, made or made larger so that a body of `slot_bytes` fits.

        A larger one takes over the newest shard.

        Raises:
            TransientError: There is not enough memory now.
        """
        with self._lock:
            old = self._regions.get(rank)
            if old is not None and old.view.slot_bytes >= slot_bytes:
                return old
            new = self._allocate(rank, slot_bytes)
            if old is not None:
                _take_over(new.view, old.view)
            self._regions[rank] = new
            return new

    def copies(self, verify: bool = False) -> tuple[ShardCopy, ...]:
        """What this memory holds, by rank.

        Args:
            verify: Whether to read every body and leave out what does not match its checksum.
                That takes seconds a gigabyte: a rank checks much faster what it restores.
        """
        with self._lock:
            regions = sorted(self._regions.items())
        found: list[ShardCopy] = []
        for rank, region in regions:
            shards = {
                shard.step: shard
                for slot, shard in region.view.committed()
                if not verify or self._intact(region, slot, shard)
            }
            if shards:
                newest = shards[max(shards)]
                steps = tuple(sorted(shards))
                in_parts = tuple(step for step in steps if shards[step].part_whole)
                found.append(ShardCopy(rank, steps, newest.payload_bytes, in_parts))
        return tuple(found)

    @property
    def own_ranks(self) -> frozenset[int]:
        """Ranks that run here."""
        with self._lock:
            return self._own

    def committed(self) -> list[Shard]:
        """All that is committed here, by rank and step."""
        with self._lock:
            regions = sorted(self._regions.items())
        return [shard for _, region in regions for _, shard in region.view.committed()]

    def offer(self, rank: int, step: int) -> None:
        """A rank has saved a step: somebody outside may want it."""
        region = self.region(rank)
        if region is not None:
            self.shelf.offer(rank, step, region.view, self._available_bytes)

    def holds(self, rank: int, step: int) -> bool:
        """Whether the rank's shard of that step is here."""
        region = self.region(rank)
        return region is not None and region.view.find(step) is not None

    def drop_damaged(self, rank: int, step: int) -> bool:
        """Read the rank's shard of that step, and forget it if it does not have its checksum.

        Takes seconds a gigabyte, but nobody's word is taken for it that a copy is of no use.
        What is forgotten is in no report, so a restart chooses another step or another copy.

        Returns:
            Whether it was forgotten.
        """
        region = self.region(rank)
        found = None if region is None else region.view.find(step)
        if region is None or found is None or self._intact(region, *found):
            return False
        with self._lock:
            slot, shard = found
            # Its rank may have written another step there meanwhile.
            damaged = region.view.read_slot(slot) == shard
            if damaged:
                region.view.invalidate(slot)
        return damaged

    def discard_after(self, step: int) -> None:
        """Forget shards of later steps: the job restarts from `step`."""
        with self._lock:
            for region in self._regions.values():
                region.view.discard_after(step)

    def keep_only(self, own_ranks: Iterable[int], held_ranks: Iterable[int]) -> None:
        """Give back the memory of all other ranks.

        Args:
            own_ranks: Ranks that run here; their shards are not taken in from other machines.
            held_ranks: Ranks of which this machine keeps the backup.
        """
        with self._lock:
            self._own = frozenset(own_ranks)
            wanted = self._own | frozenset(held_ranks)
            self._regions = {r: region for r, region in self._regions.items() if r in wanted}

    def take_in(self, shard: Shard, fill: Fill) -> None:
        """Receive a backup of another machine's rank; on any failure the older step stays.

        What is here already is not received again.

        Args:
            shard: What comes.
            fill: Writes its body.

        Raises:
            StaleAttempt: It is of an attempt that is over.
            PermanentError: It is not newer than what is here, or is another job's or layout's.
            Exception: What `fill` raised.
            TransientError: No memory, or the rank's last transfer still goes on.
        """
        self.origin.check(shard)
        with self._lock:
            if shard.attempt < self._attempt:
                raise StaleAttempt(shard.attempt, self._attempt)
            if shard.rank in self._own:
                raise PermanentError(f"machine {self.machine}: rank {shard.rank} runs here")
            region = self.region_for(shard.rank, shard.body_bytes)
        found = region.view.find(shard.step)
        if found is None or found[1] != shard:
            self._receive(region, shard, fill, shard.attempt)

    def put_back(self, shard: Shard, fill: Fill) -> None:
        """Receive the shard that a rank restarts from, in place of a later one.

        Raises:
            StaleAttempt: A newer attempt began meanwhile.
            PermanentError: It is another job's or layout's.
            Exception: What `fill` raised.
            TransientError: No memory, or another transfer of this rank goes on.
        """
        self.origin.check(shard)
        with self._lock:
            attempt = self._attempt
            region = self.region_for(shard.rank, shard.body_bytes)
            region.view.discard_after(shard.step - 1)
        self._receive(region, shard, fill, attempt)

    def _receive(self, region: SharedRegion, shard: Shard, fill: Fill, attempt: int) -> None:
        if not region.receiving.acquire(timeout=_RECEIVE_PATIENCE_S):
            raise TransientError(f"rank {shard.rank}'s last transfer still goes on")
        try:
            reached("before_receive")
            with self._current(region, attempt):
                slot = make_room(region.view, shard)
            fill(region.view.body(slot)[: shard.body_bytes])
            with self._current(region, attempt):
                region.view.commit(slot, shard)
            reached("after_receive")
        finally:
            region.receiving.release()

    @contextlib.contextmanager
    def _current(self, region: SharedRegion, attempt: int) -> Generator[None]:
        """Hold the lock, having made sure that what a transfer began with is still so."""
        with self._lock:
            if self._attempt > attempt:
                raise StaleAttempt(attempt, self._attempt)
            if self._regions.get(region.rank) is not region:
                raise TransientError(f"rank {region.rank}'s memory was given back meanwhile")
            yield

    def _allocate(self, rank: int, slot_bytes: int) -> SharedRegion:
        needed_bytes = region_bytes(slot_bytes)
        available_bytes = self._available_bytes()
        lack = (
            f"machine {self.machine}: no memory for rank {rank}'s shard:"
            f" needs {_text(needed_bytes)}, has {_text(available_bytes)}"
        )
        if needed_bytes > available_bytes:
            raise TransientError(lack)
        try:
            return SharedRegion(rank, slot_bytes)
        except OSError as error:
            raise TransientError(f"{lack} ({error})") from error

    def _intact(self, region: SharedRegion, slot: int, shard: Shard) -> bool:
        # Only told, never mended: its rank may be overwriting it at this moment.
        intact = checksum(region.view.body(slot)[: shard.body_bytes]) == shard.checksum
        if not intact:
            logger.warning("rank %d's step %d has a bad checksum", shard.rank, shard.step)
        return intact


def free_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process may still take: the host's, or less if a cgroup limits it."""
    available_bytes = _fields(proc / "meminfo")["MemAvailable:"] * 1024
    own = next(
        (
            line.removeprefix("0::").strip("/")
            for line in (proc / "self/cgroup").read_text().splitlines()
            if line.startswith("0::")
        ),
        "",
    )
    # A limit of any ancestor counts. In a container the path may be the host's: what is not
    # there limits nothing.
    for group in (cgroups / own, *(cgroups / own).parents):
        if group.is_relative_to(cgroups):
            available_bytes = min(available_bytes, _room_in(group, available_bytes))
    return available_bytes


def _room_in(group: Path, otherwise_bytes: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        limit_bytes = int((group / "memory.max").read_text())
        used_bytes = int((group / "memory.current").read_text())
        # The kernel drops these pages before it refuses anything.
        used_bytes -= _fields(group / "memory.stat").get("inactive_file", 0)
        return max(0, limit_bytes - used_bytes)
    return otherwise_bytes


def _fields(path: Path) -> dict[str, int]:
    words = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value, *_ in words}


def make_room(view: Region, shard: Shard) -> int:
    """The slot to receive a shard in, emptied."""
    for slot, held in view.committed():
        if held.step < shard.step:
            continue
        if held.attempt >= shard.attempt:
            raise PermanentError(f"step {shard.step} is not newer than step {held.step}")
        # The newer attempt restarted before that step: it belongs to a past that is over.
        view.invalidate(slot)
    newest = view.newest()
    slot = view.slot_to_overwrite(None if newest is None else newest[1].step)
    view.invalidate(slot)
    return slot


def _take_over(new: Region, old: Region) -> None:
    newest = old.newest()
    if newest is not None:
        slot, shard = newest
        new.body(0)[: shard.body_bytes] = old.body(slot)[: shard.body_bytes]
        new.commit(0, shard)


def _text(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
