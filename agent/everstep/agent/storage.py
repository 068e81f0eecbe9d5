"""The machine's part in the storage tier: saves beside training, and the way back.

Everything that touches the storage happens in a child process (`everstep.checkpoint.tier`), which
is started ahead, as loading torch takes seconds, and replaced when it fails. A save that fails,
hangs or takes too long is told as an alert, and never holds anybody up.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent.borrowing import Borrowed, Borrowing
from everstep.agent.shards import ShardStore, SharedRegion, free_memory_bytes
from everstep.agent.snapshots import Snapshot, copy_out, take_snapshot
from everstep.agent.storage_child import Child, FailedError
from everstep.core.errors import EverstepError, PermanentError, TransientError
from everstep.core.model import Alert
from everstep.core.orders import StartOrder, StorageReport, StoredCheckpoint, StoredShare
from everstep.core.shard import Origin, Shard
from everstep.core.stored import StoragePolicy, folder_name, short_run, symptom_of
from everstep.core.vocabulary import Observer

logger = logging.getLogger(__name__)

TIER_COMMAND = (sys.executable, "-m", "everstep.checkpoint.tier")
LOOK_COMMAND = (sys.executable, "-m", "everstep.storage.look")

SUBJECT = "storage"
"""What alerts about the storage tier are about: no part of the machine, and no reason to stop."""

_DECLINE_PATIENCE_S = 60.0
_MOST_DECLINED = 32
_REASON_CHARS = 500
_LOOK_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """What an agent has to know to use the storage tier.

    Attributes:
        policy: What the spec says.
        machine: Name of the machine.
        job: Name of the job.
        parallelism: The job's layout as text.
        gpus_per_machine: Of the layout.
        log: Where the children's output goes.
        command: What to start for a piece of work, if not `TIER_COMMAND`.
    """

    policy: StoragePolicy
    machine: str
    job: str
    parallelism: str
    gpus_per_machine: int
    log: Path
    command: Sequence[str] = ()


@dataclass(slots=True)
class _Saving:
    """The save under way."""

    attempt: int
    step: int
    child: Child
    told: bool = False
    """Whether somebody knows that another one would be due."""


@dataclass(slots=True)
class _Gathering:
    """A step of which some of this machine's ranks have been copied."""

    attempt: int
    step: int
    skipped: bool
    snapshots: dict[int, Snapshot] = field(default_factory=dict[int, Snapshot])


class StorageTier:
    """Saves this machine's ranks to storage, and brings them back. Safe for several threads.

    Args:
        config: What it has to know.
        on_alert: Called, in any thread, with what somebody should know.
    """

    def __init__(self, config: StorageConfig, on_alert: Callable[[Alert], None]) -> None:
        self._config = config
        self._on_alert = on_alert
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._order: StartOrder | None = None
        self._gathering: _Gathering | None = None
        self._saving: _Saving | None = None
        self._spare: Child | None = None
        self._declined: list[dict[str, Any]] = []
        """Saves without this machine, of which the others do not know yet."""
        self._last_save_s = time.monotonic()
        self._closed = False
        self._children: set[Child] = set()

    @property
    def policy(self) -> StoragePolicy:
        """What the spec says."""
        return self._config.policy

    @property
    def due_s(self) -> float:
        """In how many seconds a save by time is due, as far as this machine knows."""
        every_s = self.policy.every_s
        return 0.0 if every_s is None else every_s - (time.monotonic() - self._last_save_s)

    def url_of(self, checkpoint: str) -> str:
        """A checkpoint's folder."""
        return f"{self.policy.url.rstrip('/')}/{self._config.job}/{checkpoint}"

    def begin(self, order: StartOrder) -> None:
        """A new attempt is about to start here; what is under way goes on."""
        with self._lock:
            self._order = order
            self._gathering = None
        self._warm()

    def keep(self, rank: int, step: int, region: SharedRegion) -> None:
        """Take a copy of a rank's step, and save it once all ranks here have theirs.

        Returns when the copy is made. Failures are told as alerts.
        """
        with self._lock:
            gathering = self._gather(step)
            if gathering is None or gathering.skipped:
                return
        try:
            snapshot = take_snapshot(region.view, rank, step, free_memory_bytes())
        except (TransientError, OSError) as error:
            with self._lock:
                gathering.skipped = True
                self._decline(gathering.attempt, step, str(error))
                idle = self._saving is None
            if idle:
                threading.Thread(target=self._tell_declined, daemon=True).start()
            self._warn(f"step {step} is not saved to storage: {error}", None)
            return
        with self._lock:
            gathering.snapshots[rank] = snapshot
            order = self._order
            if order is None or gathering is not self._gathering or gathering.skipped:
                return
            if len(gathering.snapshots) < len(order.ranks):
                return
            self._gathering = None
            try:
                child = self._take_child()
            except (EverstepError, OSError) as error:
                self._warn(f"step {step} is not saved to storage: {error}", None)
                return
            self._saving = _Saving(gathering.attempt, step, child)
            self._last_save_s = time.monotonic()
        work = threading.Thread(
            target=self._save, args=(child, order, gathering), name=f"storage-{step}", daemon=True
        )
        work.start()

    def wait_idle(self) -> None:
        """Wait for the save under way, but not for one that takes too long."""
        with self._idle:
            self._idle.wait_for(
                lambda: self._saving is None or self._closed, self.policy.slow_after_s
            )

    def look(self) -> StorageReport:
        """What the storage shows to this machine; blocks."""
        machine = self._config.machine
        child = self._adopt(LOOK_COMMAND)
        try:
            child.send({"folder": self.policy.url, "job": self._config.job})
            if child.result(_LOOK_PATIENCE_S) is None:
                late = f"{self.policy.url} does not answer within {_LOOK_PATIENCE_S:g} s"
                return StorageReport(machine, (), (), late)
        except FailedError as error:
            return StorageReport(machine, (), (), error.reason)
        finally:
            self._drop(child)
        found = [StoredCheckpoint(**i["checkpoint"]) for i in child.items if "checkpoint" in i]
        unusable = [(i["name"], i["reason"]) for i in child.items if "name" in i]
        return StorageReport(machine, tuple(found), tuple(unusable))

    def bring_back(
        self,
        share: StoredShare,
        step: int,
        attempt: int,
        store: ShardStore,
        borrowing: Borrowing,
    ) -> list[tuple[int, str]]:
        """Do this machine's part in restoring from storage; blocks.

        Args:
            share: Its part.
            step: The checkpoint's.
            attempt: The attempt that will start from it.
            store: Where shards go.
            borrowing: Where what its ranks need of others goes.

        Returns:
            For each rank, or for the share as rank -1, why it could not be had, or empty.
        """
        url = self.url_of(share.checkpoint)
        try:
            if not share.ranks:
                self._run({"do": "check", "url": url, "share": share.share, "shares": share.shares})
                return [(-1, "")]
            self._fill(url, share, step, attempt, store, borrowing)
        except EverstepError as error:
            return [(rank, str(error)) for rank in share.ranks or (-1,)]
        return [(rank, "") for rank in share.ranks]

    def close(self) -> None:
        """End all that is under way."""
        with self._lock:
            self._closed = True
            self._idle.notify_all()
            children, spare = [*self._children], self._spare
        for child in children:
            child.kill()
        if spare is not None:
            spare.close()

    # --- Saving -----------------------------------------------------------------------------------

    def _gather(self, step: int) -> _Gathering | None:
        """The step's gathering; a save of an older attempt, which may never end, gives way."""
        order = self._order
        if order is None or self._closed:
            return None
        known = self._gathering
        if known is not None and known.step == step:
            return known
        busy = self._saving
        if busy is not None and busy.attempt < order.attempt:
            busy.child.kill()
            busy = self._saving = None
        self._gathering = _Gathering(order.attempt, step, skipped=busy is not None)
        if busy is not None:
            self._decline(order.attempt, step, f"it was still saving step {busy.step}")
        if busy is not None and not busy.told:
            busy.told = True
            self._warn(
                f"step {step} is not saved to storage: step {busy.step} is still being saved"
                f" ({busy.child.phase})",
                None,
            )
        return self._gathering

    def _save(self, child: Child, order: StartOrder, gathering: _Gathering) -> None:
        policy, step = self.policy, gathering.step
        try:
            child.begin()
            self._send_save(child, order, gathering)
            done = child.result(policy.slow_after_s)
            if done is None:
                self._warn(
                    f"saving step {step} to {policy.url} takes more than {policy.slow_after_s:g} s:"
                    f" it is {child.phase}",
                    None,
                )
                done = child.result(policy.give_up_after_s - policy.slow_after_s)
            if done is None:
                raise FailedError(
                    f"it was given up after {policy.give_up_after_s:g} s, {child.phase}", None
                )
            if done.get("not_removed"):
                reason = done["not_removed"]
                self._warn(f"old checkpoints cannot be removed: {reason}", done["number"])
        except FailedError as error:
            with self._lock:
                saving = self._saving
                given_way = self._closed or saving is None or saving.child is not child
                if not child.answered:
                    self._decline(gathering.attempt, step, error.reason)
            if not child.answered:
                child.kill()
            if not given_way:
                self._warn(f"step {step} is not in storage: {error}", error.number)
        finally:
            self._give_back(child)
            self._tell_declined(child)

    def _decline(self, attempt: int, step: int, reason: str) -> None:
        """Note that a save goes without this machine; with the lock."""
        order = self._order
        if order is not None:
            url = self.url_of(folder_name(step, attempt, order.run))
            self._declined.append(
                {"url": url, "slot": order.slot, "reason": reason[:_REASON_CHARS]}
            )
            del self._declined[:-_MOST_DECLINED]

    def _tell_declined(self, ended: Child | None = None) -> None:
        """Let the machines that wait for this one in vain go on; then a save is over."""
        while True:
            with self._lock:
                declined, self._declined = self._declined, []
                if not declined or self._closed:
                    if self._saving is not None and self._saving.child is ended:
                        self._saving = None
                    self._idle.notify_all()
                    return
            try:
                self._run({"do": "decline", "declined": declined}, (), _DECLINE_PATIENCE_S)
            except EverstepError as error:
                # They find out when their time is over.
                logger.warning("the other machines cannot be told: %s", error)

    def _send_save(self, child: Child, order: StartOrder, gathering: _Gathering) -> None:
        policy, config = self.policy, self._config
        name = folder_name(gathering.step, gathering.attempt, order.run)
        content: dict[str, Any] = {
            "do": "save",
            "folder": policy.url,
            "url": self.url_of(name),
            "job": config.job,
            "run": short_run(order.run),
            "attempt": gathering.attempt,
            "step": gathering.step,
            "parallelism": config.parallelism,
            "gpus_per_machine": config.gpus_per_machine,
            "slot": order.slot,
            "num_slots": order.num_machines,
            "ranks_per_slot": len(order.ranks),
            "give_up_after_s": policy.give_up_after_s,
            "keep": policy.keep,
            "shards": len(gathering.snapshots),
        }
        child.send(content)
        for snapshot in gathering.snapshots.values():
            child.send(asdict(snapshot.shard), snapshot.fd)
        # From here on the child's own mapping keeps the memory.
        gathering.snapshots.clear()

    def _warn(self, detail: str, number: int | None) -> None:
        machine = self._config.machine
        logger.warning("%s", detail)
        self._on_alert(
            Alert(
                Observer.AGENT,
                symptom_of(number, self.policy.url),
                time.time(),
                f"{machine}: {detail}",
                machine=machine,
                subject=SUBJECT,
            )
        )

    # --- The way back -----------------------------------------------------------------------------

    def _fill(
        self,
        url: str,
        share: StoredShare,
        step: int,
        attempt: int,
        store: ShardStore,
        borrowing: Borrowing,
    ) -> None:
        memory = {
            rank: os.memfd_create(f"everstep-stored-{rank}", os.MFD_CLOEXEC) for rank in share.ranks
        }
        try:
            packets = [({"rank": rank}, fd) for rank, fd in memory.items()]
            done = self._run({"do": "fill", "url": url, "ranks": list(share.ranks)}, packets)
            needed: set[int] = set()
            for one in done["filled"]:
                shard = _shard_of(one, step, attempt, store.origin)
                store.put_back(shard, partial(copy_out, memory[shard.rank]))
                if shard.part_whole:
                    needed |= {*borrowing.replicated.group_of(shard.rank)} - {*share.ranks}
        finally:
            for fd in memory.values():
                os.close(fd)
        if needed:
            self._fill_parts(url, sorted(needed), step, attempt, store, borrowing)

    def _fill_parts(
        self,
        url: str,
        ranks: Sequence[int],
        step: int,
        attempt: int,
        store: ShardStore,
        borrowing: Borrowing,
    ) -> None:
        memory = {rank: os.memfd_create(f"everstep-part-{rank}", os.MFD_CLOEXEC) for rank in ranks}
        packets = [({"rank": rank}, fd) for rank, fd in memory.items()]
        try:
            done = self._run({"do": "fill_parts", "url": url, "ranks": list(ranks)}, packets)
        except BaseException:
            for fd in memory.values():
                os.close(fd)
            raise
        for one in done["filled"]:
            shard = _shard_of(one, step, attempt, store.origin)
            borrowing.adopt(Borrowed(shard, memory[shard.rank], None))

    def _run(
        self,
        order: dict[str, Any],
        packets: Sequence[tuple[dict[str, Any], int]] = (),
        patience_s: float | None = None,
    ) -> dict[str, Any]:
        """Have a child carry out an order.

        Raises:
            FailedError: It failed, or did not end in time.
        """
        patience_s = patience_s or self.policy.give_up_after_s
        with self._lock:
            child = self._take_child()
        try:
            child.begin()
            child.send(order)
            for content, fd in packets:
                child.send(content, fd)
            done = child.result(patience_s)
            if done is None:
                raise FailedError(
                    f"{self.policy.url} does not answer within {patience_s:g} s", None
                )
            return done
        finally:
            if not child.answered:
                child.kill()
            self._give_back(child)

    # --- Children ---------------------------------------------------------------------------------

    def _warm(self) -> None:
        with self._lock:
            if self._spare is None and not self._closed:
                try:
                    self._spare = self._start_child(self._config.command or TIER_COMMAND)
                except OSError as error:
                    # It is tried again when it is needed, and told then.
                    logger.warning("no storage process: %s", error)

    def _adopt(self, command: Sequence[str]) -> Child:
        with self._lock:
            return self._start_child(command)

    def _take_child(self) -> Child:
        child, self._spare = self._spare, None
        if child is not None and not child.lives:
            child.close()
            self._children.discard(child)
            child = None
        return child or self._start_child(self._config.command or TIER_COMMAND)

    def _start_child(self, command: Sequence[str]) -> Child:
        if self._closed:
            raise PermanentError("the machine is closed")
        child = Child(command, self._config.log)
        self._children.add(child)
        return child

    def _give_back(self, child: Child) -> None:
        """Keep a child for the next piece of work, or another one if it is of no more use."""
        with self._lock:
            if child.lives and self._spare is None and not self._closed:
                self._spare = child
                return
        self._drop(child)
        self._warm()

    def _drop(self, child: Child) -> None:
        with self._lock:
            self._children.discard(child)
        child.close()


def _shard_of(filled: Mapping[str, Any], step: int, attempt: int, origin: Origin) -> Shard:
    """What a child has put into memory, as a shard of the attempt that starts from it."""
    return Shard(
        step=step,
        attempt=attempt,
        job=origin.job_print,
        layout=origin.layout_print,
        **filled,
    )
