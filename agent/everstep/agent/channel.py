"""The agent's end of a rank's channel: memory for its shard, backups of it, and its progress.

One thread a rank, because an answer may wait for another machine. The rank asks one thing at a time
(`core.channel`).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

from everstep.agent.shards import ShardStore, SharedRegion
from everstep.agent.transfer import BackupSender
from everstep.core import channel
from everstep.core.errors import EverstepError, PermanentError
from everstep.core.model import FROM_THE_BEGINNING, MachineInfo

logger = logging.getLogger(__name__)

ANSWER_MARGIN_S = 60.0
"""What a rank waits beyond the backup's own limit before it takes its agent for dead."""

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
        backup_timeout_s: How long a save may wait for the holder, > 0.
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
    ) -> None:
        self.rank = rank
        self.attempt = attempt
        self.protected_step: int | None = None
        """Newest step that the backup holder has, as far as it is known."""
        self.unprotected_reason = ""
        """Why the newest saved step has no backup although there is a holder, or empty."""
        self._sock = sock
        self._store = store
        self._sender = sender
        self._holder = holder
        self._restore_step = restore_step
        self._on_progress = on_progress
        self._backup_timeout_s = backup_timeout_s
        self._sending: Future[None] | None = None
        self._greeted = False
        self._thread = threading.Thread(target=self._run, name=f"rank-{rank}", daemon=True)

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
                case channel.Reserve(slot_bytes):
                    region = self._store.region_for(self.rank, slot_bytes)
                    self._reply(channel.Reserved(region.view.slot_bytes), region)
                case channel.Saved(step, slot):
                    self._reply(self._saved(step, slot))
                case channel.Report(step):
                    self._on_progress(self.rank, step)
                case _:
                    raise PermanentError(f"a rank does not say {message}")
        except EverstepError as error:
            logger.warning("rank %d is refused: %s", self.rank, error)
            self._reply(channel.Failed(str(error)))

    def _reply(self, message: channel.Message, region: SharedRegion | None = None) -> None:
        data = channel.encode(message)
        sent = 0
        if region is not None:
            sent = socket.send_fds(self._sock, [data], [region.fd])
        self._sock.sendall(data[sent:])

    def _welcome(self) -> channel.Welcome:
        if self._greeted:
            raise PermanentError("connect() was called before in this process")
        self._greeted = True
        patience_s = self._backup_timeout_s + ANSWER_MARGIN_S
        return channel.Welcome(self._store.machine, self.rank, self.attempt, patience_s)

    def _restore(self) -> None:
        step = self._restore_step
        if step == FROM_THE_BEGINNING:
            self._reply(channel.Restored(None))
            return
        region = self._store.region(self.rank)
        if region is None or region.view.find(step) is None:
            raise PermanentError(
                f"machine {self._store.machine} has no step {step} of rank {self.rank}"
            )
        self._reply(channel.Restored(step), region)

    def _saved(self, step: int, slot: int) -> channel.Protected:
        region = self._store.region(self.rank)
        found = None if region is None else region.view.find(step)
        if found is None or found[0] != slot:
            raise PermanentError(f"rank {self.rank} did not commit step {step} to slot {slot}")
        self._on_progress(self.rank, step)
        if self._holder is None:
            return channel.Protected(step, ok=True, reason="")
        self.unprotected_reason = self._back_up(step, self._holder)
        if not self.unprotected_reason:
            self.protected_step = step
        return channel.Protected(
            step, ok=not self.unprotected_reason, reason=self.unprotected_reason
        )

    def _back_up(self, step: int, holder: MachineInfo) -> str:
        """Wait until the holder has the step; why it does not, or empty."""
        stuck = self._sending is not None and not self._sending.done()
        self._sending = self._sender.send(self.rank, step, holder)
        try:
            # A holder that let one step's time run out does not cost every later step as much.
            self._sending.result(0 if stuck else self._backup_timeout_s)
        except TimeoutError:
            return f"machine {holder.machine} did not take it in time"
        except EverstepError as error:
            return str(error)
        return ""
