"""The agent's end of one pre-warmed process: asks it for children, and hears of their ends.

Everything here blocks, or calls back from a thread of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from everstep.agent import environment, imports, pipe, program, zygote
from everstep.agent.config import MachineConfig
from everstep.core.errors import TransientError

_ANSWER_PATIENCE_S = 30.0
_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a pre-warmed process said when it was ready.

    Attributes:
        prewarmed: Whether ranks are forked with their imports made; else they are fresh programs.
        took_s: How long the imports took.
        notes: What went wrong on the way; the ranks will show the errors themselves.
    """

    prewarmed: bool
    took_s: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended.

    Attributes:
        exit_code: Exit status, or None when a signal ended it.
        signal: Signal number, or None.
        at_s: When it was seen.
        note: What its log cannot tell, or empty.
    """

    exit_code: int | None
    signal: int | None
    at_s: float
    note: str = ""


OnEnd = Callable[[Ended], None]


class Nursery:
    """One pre-warmed process and its children.

    To be made in a thread that lives as long as it should: the kernel kills it with that thread.

    Args:
        config: The machine's part in the job.
        plain: Whether to pre-warm nothing.
        notes: What its readiness has to tell.
        on_death: Called, from a thread, when it dies without having been closed.
    """

    def __init__(
        self,
        config: MachineConfig,
        plain: bool,
        notes: tuple[str, ...],
        on_death: Callable[[Nursery], None],
    ) -> None:
        self.ready: Future[Readiness] = Future()
        self._on_death = on_death
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._asking = threading.Lock()
        self._on_end: dict[int, OnEnd] = {}
        self._alive = True
        self._closing = False
        self._sock, theirs = socket.socketpair()
        with theirs, (config.directory / "zygote.log").open("ab") as log:
            settings = _settings(config, plain, notes, theirs.fileno())
            self._process = subprocess.Popen(
                [*zygote.command(), json.dumps(asdict(settings))],
                env=environment.machine_environment(os.environ, config),
                cwd=config.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name=f"zygote-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether it has not been seen dead."""
        return self._alive

    def fork(self, fork: zygote.Fork, on_end: OnEnd) -> int:
        """Make a child.

        Args:
            fork: The child.
            on_end: Called once, from a thread, when it has ended.

        Returns:
            Its process id.

        Raises:
            TransientError: It cannot be made; `on_end` is not called.
        """
        fields = asdict(fork)
        fds = [fields.pop("log_fd"), fields.pop("fd")]
        with self._asking:
            self._on_end[fork.number] = on_end
            answer = self._ask({"fork": fields}, fds)
            if "forked" in answer:
                return int(answer["forked"])
            self._on_end.pop(fork.number, None)
        raise TransientError(f"cannot fork: {answer['refused']}")

    def kill_children(self) -> None:
        """Kill every child, at once; each is still told to its `on_end`."""
        with self._asking, contextlib.suppress(OSError):
            pipe.send(self._sock, {"kill": True})

    def wait_childless(self, patience_s: float) -> None:
        """Wait until every end was told; a process that does not tell them in time is killed."""
        deadline_s = time.monotonic() + patience_s
        while self._on_end and self._alive:
            if time.monotonic() > deadline_s:
                self._process.kill()
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Kill it, and so its children; nothing more is told."""
        self._closing = True
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _ask(self, message: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        try:
            pipe.send(self._sock, message, fds)
        except OSError as error:
            return {"refused": f"the pre-warmed process is gone ({error})"}
        try:
            answer = self._answers.get(timeout=_ANSWER_PATIENCE_S)
        except Empty:
            self._process.kill()
            return {"refused": "the pre-warmed process does not answer"}
        return {"refused": "the pre-warmed process died"} if answer is None else answer

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError), self._sock:
            while True:
                message, _ = pipe.receive(self._sock)
                if "ready" in message:
                    self.ready.set_result(_readiness(message["ready"]))
                elif "exited" in message:
                    self._end(message)
                else:
                    self._answers.put(message)
        self._die()

    def _end(self, message: Mapping[str, Any]) -> None:
        on_end = self._on_end.pop(message["exited"], None)
        code = os.waitstatus_to_exitcode(message["status"])
        at_s = message["at_s"]
        if on_end is not None:
            on_end(Ended(code, None, at_s) if code >= 0 else Ended(None, -code, at_s))

    def _die(self) -> None:
        self._alive = False
        self._answers.put(None)
        # Closing its end of the socket is not dying: with this it is both.
        self._process.kill()
        self._process.wait()
        if not self.ready.done():
            self.ready.set_exception(TransientError("the pre-warmed process died while it warmed"))
        if self._closing:
            return
        self._on_death(self)
        for number in list(self._on_end):
            note = "the pre-warmed process died, and its children with it"
            self._on_end.pop(number)(Ended(None, signal.SIGKILL, time.time(), note))


def _readiness(fields: Mapping[str, Any]) -> Readiness:
    return Readiness(fields["prewarmed"], fields["took_s"], tuple(fields["notes"]))


def _settings(
    config: MachineConfig, plain: bool, notes: tuple[str, ...], socket_fd: int
) -> zygote.Settings:
    target = program.python_target(config.command)
    script: Path | None = None
    if target is not None and target.script is not None:
        script = config.code_directory / target.script
    elif target is not None and target.module is not None:
        script = imports.script_of(target.module, config.code_directory)
    return zygote.Settings(
        socket_fd=socket_fd,
        agent_pid=os.getpid(),
        plain=plain,
        script=None if script is None else str(script),
        code_directory=str(config.code_directory),
        modules=config.prewarm,
        notes=notes,
    )
