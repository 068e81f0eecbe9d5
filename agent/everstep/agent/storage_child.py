"""A child process that works on the storage for the agent, and how the two talk.

It is started ahead, as loading torch takes seconds, does one piece of work after the other, and may
hang in a filesystem for ever: whoever waits for it says for how long.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep.core.errors import TransientError
from everstep.storage import parcel

_START_PATIENCE_S = 300.0
_DEATH_PATIENCE_S = 5.0


class FailedError(TransientError):
    """A piece of work failed; another time it may not.

    Args:
        reason: Why.
        number: The system's error number, if there was one.
    """

    def __init__(self, reason: str, number: int | None) -> None:
        super().__init__(reason, number)
        self.reason = reason
        self.number = number

    def __str__(self) -> str:
        return self.reason


class Child:
    """A process that waits for work.

    Args:
        command: What to run, a descriptor's number to be added.
        log: Where its output goes.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._killed = False
        self.answered = False
        self.phase = "starting"
        self.items: list[dict[str, Any]] = []

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def begin(self) -> None:
        """Wait until it can work: that it loads torch is not the storage's fault.

        Raises:
            FailedError: It died, or cannot.
        """
        deadline_s = time.monotonic() + _START_PATIENCE_S
        while self.phase == "starting":
            packet = self._next(deadline_s)
            if packet is None:
                raise FailedError("the storage process does not start", None)
            self.phase = str(packet.get("phase"))
        self.phase = "beginning"
        self.answered = False

    def send(self, content: dict[str, Any], fd: int | None = None) -> None:
        """Tell it something.

        Raises:
            FailedError: It is gone.
        """
        try:
            parcel.send(self._sock, content, fd)
        except OSError as error:
            raise FailedError(f"the storage process is gone: {error}", None) from error

    def result(self, patience_s: float) -> dict[str, Any] | None:
        """What came of it; None when it is not done in time.

        Raises:
            FailedError: It failed, or died.
        """
        deadline_s = time.monotonic() + patience_s
        while (content := self._next(deadline_s)) is not None:
            self.answered = "failed" in content or "done" in content
            if "failed" in content:
                raise FailedError(content["failed"], content["number"])
            if "done" in content:
                return dict(content["done"])
            if "item" in content:
                self.items.append(content["item"])
            else:
                self.phase = str(content["phase"])
        return None

    def _next(self, deadline_s: float) -> dict[str, Any] | None:
        self._sock.settimeout(max(0.001, deadline_s - time.monotonic()))
        try:
            packet = parcel.receive(self._sock)
        except TimeoutError:
            return None
        except (OSError, ValueError) as error:
            raise FailedError(f"the storage process: {error}", None) from error
        if packet is None:
            raise FailedError(f"the storage process {self._ending()}", None)
        return packet[0]

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return not self._killed and self._process.poll() is None

    def kill(self) -> None:
        """End it, whatever it does; whoever waits for its result hears of it."""
        self._killed = True
        self._process.kill()

    def close(self) -> None:
        """End it and let go of it; what does not die is left to the kernel."""
        self._process.kill()
        self._sock.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_PATIENCE_S)

    def _ending(self) -> str:
        try:
            code = self._process.wait(_DEATH_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "closed its channel"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
