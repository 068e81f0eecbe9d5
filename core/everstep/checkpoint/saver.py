"""Saves steps in the background, one after the other.

    copied   in this machine's memory: the tensors may change again
    held     committed there, and the backup's holder has it too, or its time is over
    stable   every rank holds it

Two slots a rank, and two more at its holder, suffice because of two rules:

1.  The copy of a step begins only when the step saved before it is stable.
2.  The optimizer changes a tensor only after its copy.

Let p be the newest step that all ranks have announced. Whoever overwrites a slot, here or at the
holder, writes a step that is newer than a stable one (rule 1; the backup of a step follows its
copy), so what he overwrites is older than p, and what he keeps is p or newer. So every rank has p,
in two machines' memories, whichever instruction anybody has come to, and a lost machine takes p
from nobody.

How much is lost with a machine follows from what an update waits for. An update that waits until
the step before it is stable finishes step p + 1 at the most: one finished step is redone
(`redone_steps=1`). One that waits for the copy alone never waits for the backup of that same step;
the copy has waited for the step before, so it finishes step p + 2 at the most (`redone_steps=2`).
Both cost nothing while backups take less than a step, and then both redo at most one.

Waiting for less than rule 1 is not safe. That this rank's own backup has arrived says nothing of
the others', who may be one update behind; with two slots, a rank ahead of them would give up the
only step that they have. Nor can a rank skip a step when its last one is not stable yet: a step
that one rank skips never gets stable, and the others could not give it up, as they cannot know
that nobody counts on it.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from everstep.checkpoint.agent_link import AgentLink
from everstep.checkpoint.agreement import Agreement
from everstep.checkpoint.checksums import checksum
from everstep.checkpoint.copying import Copier, copier_for
from everstep.checkpoint.sharing import Sharing
from everstep.checkpoint.stalling import StallClock
from everstep.checkpoint.tree import FlatTree
from everstep.core import channel
from everstep.core.errors import EverstepError, PermanentError
from everstep.core.faultpoint import reached
from everstep.core.shard import Origin, Region, Shard, aligned, body_bytes
from everstep.core.stored import is_turn

logger = logging.getLogger(__name__)

_ROOM_UNIT_BYTES = 64 * 1024
_CLOSE_PATIENCE_S = 5.0
_SHORTEST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 1.0
_PAUSE_RATIO = 1 / 8


class Stage(IntEnum):
    """How far the newest step has come."""

    WAITING = 0
    COPIED = 1
    HELD = 2
    STABLE = 3


class Turns:
    """Which of an attempt's saves go to storage: all ranks come to the same answer.

    Args:
        me: Who the rank is, and what the job wants.
        agreement: With the other ranks.
    """

    def __init__(self, me: channel.Welcome, agreement: Agreement) -> None:
        self._me = me
        self._agreement = agreement
        self._number = -1
        self._due_s = time.monotonic() + me.storage_due_s

    def next(self, step: int) -> bool:
        """Whether the next save, of that step, goes to storage."""
        self._number += 1
        if is_turn(step, self._me.storage_every_steps):
            return True
        return bool(self._me.storage_every_s) and self._agreement.is_chosen(self._number)

    def choose(self) -> None:
        """Choose one by time, if it is due; to be called before the save is announced."""
        every_s = self._me.storage_every_s
        if self._me.rank == 0 and every_s and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + every_s
            self._agreement.choose(self._number + 2)


@dataclass(frozen=True, slots=True)
class _Task:
    step: int
    state: FlatTree
    copier: Copier

    @property
    def size_bytes(self) -> int:
        return body_bytes(len(self.state.metadata), self.state.payload_bytes)


class Saver:
    """A thread that saves, and a place to wait for it.

    Args:
        link: To the agent; used by the saver alone from now on, but for `tell`.
        me: Who the rank is.
        agreement: With the other ranks; likewise.
        region: Memory to begin with, if there is some.
        sharing: With the ranks of the DP group.
        stalls: How long the rank has stood still, which is told with each step.
    """

    def __init__(
        self,
        link: AgentLink,
        me: channel.Welcome,
        agreement: Agreement,
        region: Region | None,
        sharing: Sharing,
        stalls: StallClock,
    ) -> None:
        self._link = link
        self._me = me
        self._origin = Origin(me.job, me.layout)
        self._agreement = agreement
        self._sharing = sharing
        self._stalls = stalls
        self._turns = Turns(me, agreement)
        self._region = region
        self._copier: Copier | None = None
        self._overdue_step: int | None = None
        self._next: _Task | None = None
        self._stage = Stage.STABLE
        self._error: EverstepError | None = None
        self._closing = threading.Event()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="everstep-saver", daemon=True)
        self._thread.start()

    def submit(self, step: int, state: FlatTree) -> None:
        """Let the step be saved, once the one before it has been copied.

        Raises:
            EverstepError: An earlier step could not be saved.
        """
        self.wait(Stage.COPIED)
        self._copier = self._copier_for(state)
        self._copier.mark()
        with self._news:
            self._next = _Task(step, state, self._copier)
            self._stage = Stage.WAITING
            self._news.notify_all()

    def wait(self, stage: Stage) -> None:
        """Wait until the newest step has come that far.

        Raises:
            EverstepError: It could not be saved.
        """
        with self._news:
            self._news.wait_for(lambda: self._stage >= stage or self._error is not None)
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Let the newest step be held, unless something fails, and end the thread."""
        patience_s = self._me.backup_timeout_s + _CLOSE_PATIENCE_S
        with self._news:
            self._news.wait_for(
                lambda: self._stage >= Stage.HELD or self._error is not None, patience_s
            )
            self._closing.set()
            self._news.notify_all()
        self._thread.join(_CLOSE_PATIENCE_S)
        if self._copier is not None and not self._thread.is_alive():
            self._copier.release()

    def _run(self) -> None:
        try:
            while (task := self._take()) is not None:
                self._save(task)
                # The tensors are not ours to keep alive.
                del task
        except EverstepError as error:
            self._fail(error)
        except Exception as error:
            # Whoever waits must hear of it.
            logger.exception("%s: saving failed", self._who)
            self._fail(PermanentError(f"{self._who}: saving failed: {error!r}"))

    def _copier_for(self, state: FlatTree) -> Copier:
        old = self._copier
        if old is not None and old.devices == state.cuda_devices:
            return old
        if old is not None:
            old.release()
        return copier_for(state)

    def _take(self) -> _Task | None:
        with self._news:
            self._news.wait_for(lambda: self._next is not None or self._closing.is_set())
            task, self._next = self._next, None
            return task

    def _reach(self, stage: Stage) -> None:
        with self._news:
            # A newer step may be waiting already, and this is not about it.
            if self._next is None:
                self._stage = stage
            self._news.notify_all()

    def _fail(self, error: EverstepError) -> None:
        with self._news:
            self._error = error
            self._news.notify_all()

    def _save(self, task: _Task) -> None:
        if not self._sharing.settle(
            task.step, task.state, task.copier, self._agreement, self._wait_until
        ):
            return
        region = self._reserve(task)
        slot = self._copy(task, region)
        self._reach(Stage.COPIED)
        self._commit(task, region, slot)
        self._protect(task.step, slot)
        reached("before_announce")
        self._turns.choose()
        self._agreement.announce(task.step)
        self._reach(Stage.HELD)
        if self._wait_until(lambda: self._agreement.is_stable(task.step)):
            self._reach(Stage.STABLE)

    def _copy(self, task: _Task, region: Region) -> int:
        # Later steps are of a past that this attempt writes anew.
        region.discard_after(task.step - 1)
        newest = region.newest()
        slot = region.slot_to_overwrite(None if newest is None else newest[1].step)
        reached("before_invalidate")
        region.invalidate(slot)
        reached("after_invalidate")
        body = region.body(slot)
        metadata = task.state.metadata
        body[: len(metadata)] = metadata
        task.copier.copy(task.state, body[aligned(len(metadata)) :])
        task.state.check_unchanged()
        reached("after_copy")
        return slot

    def _commit(self, task: _Task, region: Region, slot: int) -> None:
        body = region.body(slot)[: task.size_bytes]
        part_bytes = task.state.part_bytes
        part = task.state.part
        shard = Shard(
            rank=self._me.rank,
            step=task.step,
            attempt=self._me.attempt,
            metadata_bytes=len(task.state.metadata),
            payload_bytes=task.state.payload_bytes,
            checksum=checksum(body),
            job=self._origin.job_print,
            layout=self._origin.layout_print,
            part_bytes=part_bytes,
            part_checksum=checksum(body[len(body) - part_bytes :]) if part_bytes else 0,
            part_whole=0 if part is None else part.whole,
        )
        region.commit(slot, shard)
        reached("after_commit")

    def _protect(self, step: int, slot: int) -> None:
        overdue = self._overdue_step
        if overdue is not None and self._link.wait_protected(overdue, 0.0) is not None:
            self._overdue_step = None
        to_storage, stalled_s = self._turns.next(step), self._stalls.stalled_s
        self._link.tell(channel.Saved(step, slot, to_storage, stalled_s))
        # A holder that let one step's time run out does not cost every later step as much.
        patience_s = self._me.backup_timeout_s if self._overdue_step is None else 0.0
        answer = self._link.wait_protected(step, patience_s)
        if answer is None:
            if self._overdue_step is None:
                self._overdue_step = step
            logger.warning("%s: step %d has no backup in time", self._who, step)
        elif not answer.ok:
            logger.warning("%s: step %d has no backup: %s", self._who, step, answer.reason)

    def _wait_until(self, is_so: Callable[[], bool]) -> bool:
        began_s = time.monotonic()
        while not is_so():
            # In proportion: many ranks that wait long must not flood the store.
            pause_s = _PAUSE_RATIO * (time.monotonic() - began_s)
            if self._closing.wait(min(max(pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)):
                return False
        return True

    @property
    def _who(self) -> str:
        return f"rank {self._me.rank} on {self._me.machine}"

    def _reserve(self, task: _Task) -> Region:
        region = self._region
        if region is None or region.slot_bytes < task.size_bytes:
            # A little more than asked for: the description grows by a digit now and then.
            room_bytes = aligned(task.size_bytes + len(task.state.metadata) // 8, _ROOM_UNIT_BYTES)
            _, fd = self._link.ask(channel.Reserve(room_bytes), channel.Reserved)
            region = self._region = map_region(fd)
        task.copier.adopt(region.memory)
        return region


def map_region(fd: int | None) -> Region:
    """The memory behind a descriptor, which is closed.

    Raises:
        PermanentError: There is none, or it is no region.
    """
    if fd is None:
        raise PermanentError("the agent's answer lacks the shared memory")
    try:
        return Region(memoryview(mmap.mmap(fd, 0)))
    finally:
        os.close(fd)
