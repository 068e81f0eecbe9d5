"""A training process's connection to its machine's agent.

    session = checkpoint.connect()
    if (restored := session.restore()) is not None:
        model.load_state_dict(restored.state["model"])
    for step in range(first, last + 1):
        ...
        session.save(step, {"model": model.state_dict(), ...})

Without an agent (`names.ENV_CHANNEL_FD` is not set) the same script runs as it would by itself.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from everstep.checkpoint import tree
from everstep.core import channel, names
from everstep.core.errors import PermanentError, TransientError
from everstep.core.shard import Region, Shard, aligned, body_bytes

logger = logging.getLogger(__name__)

_GREETING_PATIENCE_S = 60.0
_ROOM_UNIT_BYTES = 1024 * 1024
_CHUNK_BYTES = 64 * 1024

_Answer = TypeVar("_Answer", bound=channel.Message)


@dataclass(frozen=True, slots=True)
class Restored:
    """Where training goes on.

    Attributes:
        step: Last step that is contained in the state; training continues with the one after it.
        state: What `save` was given, in memory of its own, tensors on the CPU.
    """

    step: int
    state: dict[Any, Any]


class Session(ABC):
    """Restores a rank's state once, and saves it after every step. Not for use by two threads."""

    @abstractmethod
    def restore(self) -> Restored | None:
        """The state to start from, or None to start from the beginning.

        Raises:
            PermanentError: The stored state is damaged, or the agent is gone.
        """

    @abstractmethod
    def save(self, step: int, state: Mapping[Any, Any]) -> None:
        """Keep the state after `step` in this machine's memory, and in another's.

        Returns when both have it, or when the other machine failed to take it for as long as the
        job allows; then this machine's copy stands alone, and a warning is logged.

        Args:
            step: Number of finished steps, greater than that of the last save or restore.
            state: Nested dicts (keys str or int), lists and tuples of tensors and scalars. It may
                be changed again after the return.

        Raises:
            TypeError: The state contains something that cannot be stored; the text names it.
            ValueError: The step is not greater than the last.
            PermanentError: No memory for it, or the agent is gone.
            TransientError: The agent does not answer.
        """

    @abstractmethod
    def report(self, step: int) -> None:
        """Tell the agent that `step` is finished, in a script that does not save every step."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the agent; nothing can be saved afterwards."""


def connect() -> Session:
    """The session of this process; to be called once in it.

    Raises:
        PermanentError: There should be an agent and it cannot be spoken to.
        TransientError: The agent does not answer.
    """
    number = os.environ.get(names.ENV_CHANNEL_FD)
    if number is None:
        return _DetachedSession()
    try:
        sock = socket.socket(fileno=int(number))
    except (OSError, ValueError) as error:
        raise PermanentError(
            f"{names.ENV_CHANNEL_FD}={number} is not an open socket: {error}"
        ) from error
    # Programs that the script starts would else keep the channel open after the script's end.
    sock.set_inheritable(False)
    try:
        return _AttachedSession(sock)
    except BaseException:
        sock.close()
        raise


class _DetachedSession(Session):
    """No agent: every start is from the beginning, and nothing is kept."""

    def restore(self) -> Restored | None:
        return None

    def save(self, step: int, state: Mapping[Any, Any]) -> None:
        pass

    def report(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass


class _AttachedSession(Session):
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = channel.Decoder()
        self._region: Region | None = None
        self._last_step = -1
        sock.settimeout(_GREETING_PATIENCE_S)
        self._me, _ = self._ask(channel.Hello(), channel.Welcome)
        sock.settimeout(self._me.patience_s)

    def restore(self) -> Restored | None:
        answer, fd = self._ask(channel.Restore(), channel.Restored)
        if answer.step is None:
            return None
        self._region = _map(fd)
        found = self._region.find(answer.step)
        if found is None:
            raise PermanentError(f"{self._who}: step {answer.step} is not in its memory")
        slot, shard = found
        if not self._region.intact(slot):
            raise PermanentError(
                f"{self._who}: the stored state of step {answer.step} is damaged (bad checksum)"
            )
        body = self._region.body(slot)
        payload = body[aligned(shard.metadata_bytes) : shard.body_bytes]
        state = tree.rebuild(bytes(body[: shard.metadata_bytes]), payload)
        self._last_step = answer.step
        return Restored(answer.step, state)

    def save(self, step: int, state: Mapping[Any, Any]) -> None:
        if step <= self._last_step:
            raise ValueError(f"step {step} is saved after step {self._last_step}")
        flat = tree.FlatTree(state)
        region = self._reserve(body_bytes(len(flat.metadata), flat.payload_bytes))
        # Later steps are of a past that this attempt writes anew.
        region.discard_after(step - 1)
        newest = region.newest()
        slot = region.slot_to_overwrite(None if newest is None else newest[1].step)
        region.invalidate(slot)
        body = region.body(slot)
        body[: len(flat.metadata)] = flat.metadata
        flat.write(body[aligned(len(flat.metadata)) :])
        size_bytes = body_bytes(len(flat.metadata), flat.payload_bytes)
        shard = Shard(
            rank=self._me.rank,
            step=step,
            attempt=self._me.attempt,
            metadata_bytes=len(flat.metadata),
            payload_bytes=flat.payload_bytes,
            crc32=zlib.crc32(body[:size_bytes]),
        )
        region.commit(slot, shard)
        self._last_step = step
        answer, _ = self._ask(channel.Saved(step, slot), channel.Protected)
        if not answer.ok:
            logger.warning("%s: step %d has no backup: %s", self._who, step, answer.reason)

    def report(self, step: int) -> None:
        self._send(channel.Report(step))

    def close(self) -> None:
        self._sock.close()

    @property
    def _who(self) -> str:
        return f"rank {self._me.rank} on {self._me.machine}"

    def _reserve(self, size_bytes: int) -> Region:
        if self._region is None or self._region.slot_bytes < size_bytes:
            # A little more than asked for: the metadata grows by a digit now and then.
            room_bytes = aligned(size_bytes + size_bytes // 64, _ROOM_UNIT_BYTES)
            _, fd = self._ask(channel.Reserve(room_bytes), channel.Reserved)
            self._region = _map(fd)
        return self._region

    def _ask(self, question: channel.Message, kind: type[_Answer]) -> tuple[_Answer, int | None]:
        """Send a question and wait for its answer, and the descriptor beside it."""
        self._send(question)
        fds: list[int] = []
        while True:
            try:
                data, received, _, _ = socket.recv_fds(self._sock, _CHUNK_BYTES, 1)
            except TimeoutError as error:
                # A late answer would be taken for that to the next question.
                self._sock.close()
                raise TransientError(
                    f"the agent does not answer {type(question).__name__}"
                ) from error
            except OSError as error:
                raise PermanentError(f"the agent is gone: {error}") from error
            if not data:
                raise PermanentError("the agent is gone: it closed the channel")
            fds += received
            for answer in self._decoder.feed(data):
                if isinstance(answer, channel.Failed):
                    raise PermanentError(answer.reason)
                if not isinstance(answer, kind):
                    raise PermanentError(f"the agent answered {answer} to {question}")
                return answer, fds[0] if fds else None

    def _send(self, message: channel.Message) -> None:
        try:
            self._sock.sendall(channel.encode(message))
        except OSError as error:
            raise PermanentError(f"the agent is gone: {error}") from error


def _map(fd: int | None) -> Region:
    if fd is None:
        raise PermanentError("the agent's answer lacks the shared memory")
    try:
        return Region(memoryview(mmap.mmap(fd, 0)))
    finally:
        os.close(fd)
