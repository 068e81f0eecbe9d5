"""The agent's end of a rank's channel: memory for its shard, backups of it, and its progress.

One thread a rank, because an answer may wait for memory. What became of a backup is told by the
thread that sent it, whenever that is (`core.channel`).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

from everstep.agent.borrowing import Borrowing, Place
from everstep.agent.rank_voice import Word
from everstep.agent.shards import ShardStore, SharedRegion
from everstep.agent.storage import StorageTier
from everstep.agent.transfer.sender import BackupSender
from everstep.core import channel
from everstep.core.errors import EverstepError, PermanentError
from everstep.core.model import MachineInfo
from everstep.core.orders import FROM_THE_BEGINNING
from everstep.core.parts import NOTHING_REPLICATED

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 64 * 1024
_CLOSE_PATIENCE_S = 1.0


class RankChannel:
    """Answers one rank's process.

    Args:
        rank: Global rank.
        attempt: Attempt that the process belongs to.
        sock: The agent's end of the socket pair; closed by the channel.
        store: Where the rank's shard lives.
        sender: Sends backups.
        holder: Machine that keeps the rank's backup, or None when nobody does.
        restore_step: Step that the rank restores, or FROM_THE_BEGINNING.
        on_progress: Called with rank and step whenever the rank finished a step, in the channel's
            thread.
        backup_timeout_s: How long the rank waits for the holder to have a step, > 0.
        on_damaged: Called with rank, step and one sentence when the rank's shard was found damaged,
            in the channel's thread, before the rank hears what becomes of it.
        on_word: Called with rank and message whenever the rank said something of itself, likewise.
        on_replayed: Called with rank and digest whenever a rank of a replay did all its steps, in
            the channel's thread; None where nothing is replayed.
        tier: Where steps are sent to storage, or None without a storage tier.
        stored: The checkpoint's folder in storage that the rank reads `restore_step` from; empty
            when it is in memory.
        borrowing: What it may need of other ranks, or None when each holds all of its state.
    """

    def __init__(
        self,
        rank: int,
        attempt: int,
        sock: socket.socket,
        store: ShardStore,
        sender: BackupSender,
        holder: MachineInfo | None,
        restore_step: int,
        on_progress: Callable[[int, int], None],
        backup_timeout_s: float,
        on_damaged: Callable[[int, int, str], None] = lambda rank, step, text: None,
        on_word: Callable[[int, Word], None] = lambda rank, word: None,
        on_replayed: Callable[[int, str], None] | None = None,
        tier: StorageTier | None = None,
        stored: str = "",
        borrowing: Borrowing | None = None,
    ) -> None:
        self.rank = rank
        self.attempt = attempt
        self.protected_step: int | None = None
        """Newest step that the backup holder has, as far as it is known."""
        self.unprotected_reason = ""
        """Why the newest saved step has no backup although there is a holder, or empty."""
        self._saved_step = restore_step
        self._sock = sock
        self._store = store
        self._sender = sender
        self._holder = holder
        self._restore_step = restore_step
        self._on_progress = on_progress
        self._backup_timeout_s = backup_timeout_s
        self._on_damaged = on_damaged
        self._on_replayed = on_replayed
        self._on_word = on_word
        self._tier = tier
        self._stored = stored
        self._borrowing = borrowing
        self._replying = threading.Lock()
        self._greeted = False
        self._mended = False
        self._thread = threading.Thread(target=self._run, name=f"rank-{rank}", daemon=True)

    @property
    def backup_lag_steps(self) -> int | None:
        """How many steps the backup is behind what the rank saved; None when there is no holder."""
        if self._holder is None:
            return None
        return self._saved_step - max(self._restore_step, self.protected_step or 0)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering; the rank gets an error when it asks again."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("rank %d had closed its channel", self.rank)
        self._thread.join(_CLOSE_PATIENCE_S)

    def _run(self) -> None:
        decoder = channel.Decoder()
        try:
            while data := self._sock.recv(_CHUNK_BYTES):
                for message in decoder.feed(data):
                    self._answer(message)
        except OSError as error:
            logger.debug("channel of rank %d ended: %s", self.rank, error)
        except PermanentError as error:
            logger.warning("channel of rank %d is given up: %s", self.rank, error)
        finally:
            self._sock.close()

    def _answer(self, message: channel.Message) -> None:
        try:
            match message:
                case channel.Hello():
                    # From now on its steps count, and no longer just its being alive.
                    self._on_progress(self.rank, self._restore_step)
                    self._reply(self._welcome())
                case channel.Restore():
                    self._restore()
                case channel.Damaged(step):
                    self._mend(step)
                case channel.Borrow() | channel.DamagedPart() if self._borrowing is not None:
                    self._lend(message, self._borrowing)
                case channel.Reserve(slot_bytes):
                    region = self._store.region_for(self.rank, slot_bytes)
                    self._reply(channel.Reserved(region.view.slot_bytes), region)
                case channel.Saved(step, slot, to_storage):
                    self._on_word(self.rank, message)
                    self._keep(step, slot, to_storage)
                case _:
                    self._hear(message)
        except EverstepError as error:
            logger.warning("rank %d is refused: %s", self.rank, error)
            self._reply(channel.Failed(str(error)))

    def _reply(self, message: channel.Message, memory: SharedRegion | Place | None = None) -> None:
        data = channel.encode(message)
        with self._replying:
            sent = 0
            if memory is not None:
                sent = socket.send_fds(self._sock, [data], [memory.fd])
            self._sock.sendall(data[sent:])

    def _hear(self, message: channel.Message) -> None:
        match message:
            case channel.Report() | channel.Entered():
                self._on_word(self.rank, message)
            case channel.Replayed(digest) if self._on_replayed is not None:
                self._on_replayed(self.rank, digest)
            case _:
                raise PermanentError(f"a rank does not say {message}")

    def _lend(self, wish: channel.Borrow | channel.DamagedPart, borrowing: Borrowing) -> None:
        find = borrowing.find if isinstance(wish, channel.Borrow) else borrowing.mend
        place = find(wish.rank, wish.step)
        self._reply(place.lent, place)

    def _welcome(self) -> channel.Welcome:
        if self._greeted:
            raise PermanentError("connect() was called before in this process")
        self._greeted = True
        origin = self._store.origin
        policy = None if self._tier is None else self._tier.policy
        replicated = NOTHING_REPLICATED if self._borrowing is None else self._borrowing.replicated
        return channel.Welcome(
            self._store.machine,
            self.rank,
            self.attempt,
            origin.job,
            origin.layout,
            self._backup_timeout_s,
            storage_every_steps=0 if policy is None else policy.every_steps or 0,
            storage_every_s=0.0 if policy is None else float(policy.every_s or 0.0),
            storage_due_s=0.0 if self._tier is None else self._tier.due_s,
            replicated=list(replicated.names),
            group_size=replicated.group_size,
            group_stride=replicated.group_stride,
        )

    def _restore(self) -> None:
        step = self._restore_step
        if step == FROM_THE_BEGINNING:
            self._reply(channel.Restored(None))
            return
        if self._stored:
            self._reply(channel.Restored(step, self._stored))
            return
        if not self._store.holds(self.rank, step):
            gone = f"machine {self._store.machine} has no step {step} of rank {self.rank}"
            if self._holder is None or self._mended:
                raise PermanentError(gone)
            # A rank that borrows its part may have found it damaged first.
            self._replace(step, gone)
        self._reply(channel.Restored(step), self._store.region(self.rank))

    def _mend(self, step: int) -> None:
        """Get another copy of what the rank found damaged; the second time, there is none left."""
        there = self._store.holds(self.rank, step)
        if there and not self._store.drop_damaged(self.rank, step):
            raise PermanentError(f"rank {self.rank}'s step {step} is as it was saved")
        damaged = f"machine {self._store.machine}'s step {step} of rank {self.rank} is damaged"
        self._replace(step, damaged)
        self._restore()

    def _replace(self, step: int, damaged: str) -> None:
        try:
            source = self._fetch(step)
        except EverstepError as error:
            text = f"{damaged}, and {error}"
            self._on_damaged(self.rank, step, text)
            raise PermanentError(text) from error
        text = f"{damaged}: fetched from machine {source}"
        logger.warning("%s", text)
        self._on_damaged(self.rank, step, text)

    def _fetch(self, step: int) -> str:
        """Get the backup; the name of the machine that had it."""
        if self._holder is None:
            raise PermanentError("it has no backup")
        holder = self._holder.machine
        try:
            if self._mended:
                # It is in no report from then on, so that the next restart chooses another step.
                self._sender.doubt(self.rank, step, self._holder)
                raise PermanentError(f"it is damaged on machine {holder} too")
            self._sender.fetch(self.rank, step, self._holder)
        except EverstepError as error:
            raise PermanentError(f"its backup: {error}") from error
        self._mended = True
        return holder

    def _keep(self, step: int, slot: int, to_storage: bool) -> None:
        region = self._saved(step, slot)
        if self._borrowing is not None:
            self._borrowing.finish(self.rank)
        self._store.offer(self.rank, step)
        if to_storage and self._tier is not None:
            self._tier.keep(self.rank, step, region)

    def _saved(self, step: int, slot: int) -> SharedRegion:
        region = self._store.region(self.rank)
        found = None if region is None else region.view.find(step)
        if region is None or found is None or found[0] != slot:
            raise PermanentError(f"rank {self.rank} did not commit step {step} to slot {slot}")
        self._on_progress(self.rank, step)
        if self._holder is None:
            self._reply(channel.Protected(step, ok=True, reason=""))
            return region
        self._saved_step = step
        self.unprotected_reason = f"machine {self._holder.machine} has not taken it yet"
        sending = self._sender.send(self.rank, step, self._holder)
        sending.add_done_callback(lambda sent: self._see_backup(step, sent))
        return region

    def _see_backup(self, step: int, sent: Future[None]) -> None:
        error = sent.exception()
        if error is None:
            self.protected_step = step
        reason = "" if error is None else str(error)
        if step == self._saved_step:
            self.unprotected_reason = reason
        try:
            self._reply(channel.Protected(step, error is None, reason))
        except OSError as gone:
            logger.debug("rank %d does not hear of step %d's backup: %s", self.rank, step, gone)
