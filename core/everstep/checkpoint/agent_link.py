"""The rank's end of the channel to its machine's agent (`core.channel`)."""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import TypeVar

from everstep.core import channel
from everstep.core.errors import PermanentError, TransientError

_CHUNK_BYTES = 64 * 1024
_MS_PER_S = 1000

_Answer = TypeVar("_Answer", bound=channel.Message)


class AgentLink:
    """Questions and answers. `tell` may be called by any thread, the rest by one at a time.

    Args:
        sock: The connection; closed with the link.
        patience_s: Longest wait for any answer but `Protected`, > 0.
    """

    def __init__(self, sock: socket.socket, patience_s: float) -> None:
        sock.settimeout(patience_s)
        self._sock = sock
        self._patience_s = patience_s
        self._decoder = channel.Decoder()
        self._received: list[channel.Message] = []
        self._fds: list[int] = []
        self._sending = threading.Lock()

    def tell(self, message: channel.Message) -> None:
        """Say something that is not answered, or later.

        Raises:
            PermanentError: The agent is gone.
        """
        try:
            with self._sending:
                self._sock.sendall(channel.encode(message))
        except OSError as error:
            raise PermanentError(f"the agent is gone: {error}") from error

    def ask(
        self, question: channel.Message, kind: type[_Answer], patience_s: float | None = None
    ) -> tuple[_Answer, int | None]:
        """Wait for the answer to a question, and the descriptor beside it.

        Args:
            question: What to ask.
            kind: What the answer has to be.
            patience_s: How long to wait, if not as for any other question.

        Raises:
            TransientError: There is none in time; the link is of no more use.
            PermanentError: The agent could not do it, or is gone.
        """
        self.tell(question)
        deadline_s = time.monotonic() + (patience_s or self._patience_s)
        while (answer := self._next(deadline_s)) is not None:
            if isinstance(answer, kind):
                return answer, self._fds.pop() if self._fds else None
            # What became of a backup that nobody waits for any more.
            if not isinstance(answer, channel.Protected):
                raise PermanentError(f"the agent answered {answer} to {question}")
        # A late answer would be taken for that to the next question.
        self.close()
        raise TransientError(f"the agent does not answer {type(question).__name__}")

    def wait_protected(self, step: int, patience_s: float) -> channel.Protected | None:
        """What became of the step's backup; None when that is not known in time.

        Raises:
            PermanentError: The agent is gone.
        """
        deadline_s = time.monotonic() + patience_s
        while (answer := self._next(deadline_s)) is not None:
            if not isinstance(answer, channel.Protected):
                raise PermanentError(f"the agent said {answer} unasked")
            if answer.step == step:
                return answer
        return None

    def close(self) -> None:
        """Let go of the agent."""
        self._sock.close()

    def _next(self, deadline_s: float) -> channel.Message | None:
        try:
            while not self._received:
                if not self._readable(deadline_s):
                    return None
                data, fds, _, _ = socket.recv_fds(self._sock, _CHUNK_BYTES, 1)
                if not data:
                    raise PermanentError("the agent is gone: it closed the channel")
                self._fds += fds
                self._received += self._decoder.feed(data)
        except (OSError, ValueError) as error:
            raise PermanentError(f"the agent is gone: {error}") from error
        message = self._received.pop(0)
        if isinstance(message, channel.Failed):
            raise PermanentError(message.reason)
        return message

    def _readable(self, deadline_s: float) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        left_s = max(0.0, deadline_s - time.monotonic())
        return bool(poll.poll(left_s * _MS_PER_S))
