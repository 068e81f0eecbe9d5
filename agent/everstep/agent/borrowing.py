"""What ranks here need once, to restore, of what other ranks keep for their DP groups.

A part of a rank that runs here is lent from its own region: nobody overwrites the step that a job
restarts from before every rank has restored it and saved the next. The others' are fetched before
the start, into memory that is given back once all ranks here have saved a step.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from everstep.agent.link import Link, connect
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.asking import doubt
from everstep.agent.transfer.protocol import accepted, read_shard, receive_body
from everstep.core import channel
from everstep.core.errors import EverstepError, PermanentError, TransientError
from everstep.core.model import MachineInfo
from everstep.core.orders import Loan
from everstep.core.parts import NOTHING_REPLICATED, Replicated
from everstep.core.shard import Shard

logger = logging.getLogger(__name__)

_MENDING_PATIENCE_S = 30.0
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Borrowed:
    """A part of another rank's shard, in memory of its own.

    Attributes:
        shard: The shard.
        fd: Memory that holds the part alone; closed with this object.
        loan: Where it came from; None: from storage.
    """

    def __init__(self, shard: Shard, fd: int, loan: Loan | None) -> None:
        self.shard = shard
        self.fd = fd
        self.loan = loan
        weakref.finalize(self, os.close, fd)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part lies.

    Attributes:
        lent: What its borrower is told.
        fd: The memory.
        owner: Keeps it open.
    """

    lent: channel.Lent
    fd: int
    owner: object


class Borrowing:
    """Parts for the ranks of this machine. Safe to use from several threads.

    Args:
        store: Where shards lie.
        secret: The job's secret.
        job: The job's name.
        replicated: What the job says is equal on all ranks of a DP group.
    """

    def __init__(
        self,
        store: ShardStore,
        secret: bytes,
        job: str,
        replicated: Replicated = NOTHING_REPLICATED,
    ) -> None:
        self.replicated = replicated
        self._store = store
        self._secret = secret
        self._job = job
        self._lock = threading.Lock()
        self._parts: dict[int, Borrowed] = {}
        self._restoring: set[int] = set()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whose parts are borrowed now, ascending."""
        with self._lock:
            return tuple(sorted(self._parts))

    def fetch(self, loan: Loan, step: int) -> list[tuple[int, str]]:
        """Fetch the parts of a loan that are not here; blocks.

        Returns:
            For each rank why its part could not be had, or empty.
        """
        lacking = [rank for rank in loan.ranks if not self._has(loan, rank, step)]
        reason = ""
        try:
            if lacking:
                self._fetch(loan, lacking, step)
        except EverstepError as error:
            reason = str(error)
        failed = {rank for rank in lacking if not self._has(loan, rank, step)}
        return [(rank, reason if rank in failed else "") for rank in loan.ranks]

    def adopt(self, part: Borrowed) -> None:
        """Lend a part that came another way, in place of what was here of its rank."""
        with self._lock:
            self._parts[part.shard.rank] = part

    def begin(self, ranks: Iterable[int], step: int) -> None:
        """These ranks are about to restore a step; other steps' parts are given back."""
        with self._lock:
            self._restoring = set(ranks)
            self._parts = {r: part for r, part in self._parts.items() if part.shard.step == step}

    def finish(self, rank: int) -> None:
        """The rank has restored; with the last one, all parts are given back."""
        with self._lock:
            self._restoring.discard(rank)
            if not self._restoring:
                self._parts = {}

    def find(self, rank: int, step: int) -> Place:
        """Where a rank's part of a step lies.

        Raises:
            PermanentError: It is not here.
        """
        with self._lock:
            borrowed = self._parts.get(rank)
        if borrowed is not None and borrowed.shard.step == step:
            return Place(_lent(borrowed.shard, 0), borrowed.fd, borrowed)
        region = self._store.region(rank)
        found = None if region is None else region.view.find(step)
        if region is None or found is None or rank not in self._store.own_ranks:
            machine = self._store.machine
            raise PermanentError(f"machine {machine} has no part of step {step} of rank {rank}")
        slot, shard = found
        offset = region.view.body_offset(slot) + shard.part_start
        return Place(_lent(shard, offset), region.fd, region)

    def mend(self, rank: int, step: int) -> Place:
        """Get a part again that is damaged; blocks.

        Where the rank itself runs, it gets its backup in place of what is dropped: that is waited
        for.

        Raises:
            PermanentError: There is no other one in time.
        """
        with self._lock:
            borrowed = self._parts.get(rank)
        deadline_s = time.monotonic() + _MENDING_PATIENCE_S
        pause_s = _SHORTEST_PAUSE_S
        while True:
            try:
                return self._again(rank, step, None if borrowed is None else borrowed.loan)
            except EverstepError as error:
                if time.monotonic() > deadline_s:
                    raise PermanentError(f"the part of rank {rank} is damaged: {error}") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _again(self, rank: int, step: int, loan: Loan | None) -> Place:
        if loan is None:
            self._store.drop_damaged(rank, step)
            return self.find(rank, step)
        holder = MachineInfo(loan.machine, loan.host, loan.port, 0, 0, 0.0)
        doubt(rank, step, holder, self._secret, self._job)
        self._fetch(loan, [rank], step)
        return self.find(rank, step)

    def _has(self, loan: Loan, rank: int, step: int) -> bool:
        with self._lock:
            known = self._parts.get(rank)
        return known is not None and known.shard.step == step and known.loan == loan

    def _fetch(self, loan: Loan, ranks: Iterable[int], step: int) -> None:
        with contextlib.closing(connect(loan.host, loan.port, self._secret, self._job)) as link:
            try:
                for rank in ranks:
                    self.adopt(self._receive(link, loan, rank, step))
            except (OSError, EOFError) as error:
                raise TransientError(f"loan from {loan.machine} broke off: {error}") from error

    def _receive(self, link: Link, loan: Loan, rank: int, step: int) -> Borrowed:
        link.send({"get": {"rank": rank, "step": step, "part": True}})
        shard = read_shard(accepted(link.receive()).get("shard"))
        if (shard.rank, shard.step) != (rank, step) or not shard.part_whole:
            raise PermanentError(f"{loan.machine} answered with {shard}")
        self._store.origin.check(shard)
        if shard.part_bytes > self._store.available_bytes:
            raise TransientError(f"no memory for rank {rank}'s part of {shard.part_bytes} B")
        fd = os.memfd_create(f"everstep-part-{rank}", os.MFD_CLOEXEC)
        part = Borrowed(shard, fd, loan)
        if shard.part_bytes:
            # Taken at once: else a lack of memory would show itself as a signal.
            os.posix_fallocate(fd, 0, shard.part_bytes)
            receive_body(link, memoryview(mmap.mmap(part.fd, shard.part_bytes)))
        else:
            accepted(link.receive())
        return part


def _lent(shard: Shard, offset: int) -> channel.Lent:
    return channel.Lent(shard.rank, offset, shard.part_bytes, shard.part_checksum, shard.part_whole)
