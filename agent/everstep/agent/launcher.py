"""Starts and kills a machine's processes, with one pre-warmed process to fork them from.

Everything here blocks; the event loop uses it through threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from everstep.agent import environment, process, program, zygote
from everstep.agent.config import MachineConfig
from everstep.agent.nursery import Nursery, OnEnd, Readiness
from everstep.core import updates
from everstep.core.errors import TransientError
from everstep.core.orders import RankStart, StartOrder

logger = logging.getLogger(__name__)

LAST_LINES = 20
_TAIL_BYTES = 16 * 1024
_PLAIN_PATIENCE_S = 30.0
_DEATH_PATIENCE_S = 10.0
_TELL_PATIENCE_S = 2.0


class Launcher:
    """Keeps one pre-warmed process ready, and starts ranks and stores from it.

    Safe to use from several threads.

    Args:
        config: The machine's part in the job.
    """

    def __init__(self, config: MachineConfig) -> None:
        self._config = config
        self._current: Nursery | None = None
        self._numbers = iter(range(2**63))
        self._closed = False
        # One thread for good: a process that is made in it dies when it ends.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")
        self._target = program.python_target(config.command)

    def warm(self) -> None:
        """Make sure that a pre-warmed process is there or on its way; does not wait for it."""
        self._spawner.submit(self._spawn, self._target is None, ())

    def wait_ready(self) -> Readiness:
        """Wait until ranks can be started.

        Raises:
            TransientError: Not even fresh programs can be started.
        """
        nursery = self._spawner.submit(self._spawn, self._target is None, ()).result()
        try:
            return nursery.ready.result(self._config.prewarm_timeout_s)
        except TimeoutError:
            note = f"imports took longer than {self._config.prewarm_timeout_s} s"
        except TransientError as error:
            note = f"{error}: see zygote.log"
        logger.warning("%s: ranks start as fresh programs", note)
        nursery.close()
        nursery = self._spawner.submit(self._spawn, True, (note,)).result()
        try:
            return nursery.ready.result(_PLAIN_PATIENCE_S)
        except TimeoutError as error:
            raise TransientError("no process can be started on this machine") from error

    def start_rank(
        self,
        order: StartOrder,
        start: RankStart,
        channel: socket.socket,
        log: Path,
        on_end: OnEnd,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Start one rank; `wait_ready` was called before.

        Args:
            order: The order that starts it.
            start: The rank.
            channel: The rank's end of its channel; stays the caller's to close.
            log: File for its output, which is added to.
            on_end: Called once, from a thread, when the rank has ended.
            variables: What is other for it than for one that trains.

        Returns:
            Its process id.

        Raises:
            TransientError: It cannot be started; `on_end` is not called.
        """
        environ = environment.rank_environment(os.environ, self._config, order, start, variables)
        argv = list(updates.command_with(self._config.command, order.settings))
        directory = order.code_directory
        return self._fork("rank", argv, directory, environ, log, channel.fileno(), on_end)

    def start_store(self, listener: socket.socket, log: Path, on_end: OnEnd) -> int:
        """Start a rendezvous store on this listening socket; otherwise as `start_rank`."""
        variables = environment.machine_environment(os.environ, self._config)
        directory = str(self._config.directory)
        return self._fork("store", [], directory, variables, log, listener.fileno(), on_end)

    def start_check(
        self,
        argv: list[str],
        variables: Mapping[str, str],
        pipe: int,
        log: Path,
        on_end: OnEnd,
    ) -> int:
        """Start one program of a check, which answers through this pipe; otherwise as a rank."""
        environ = {**environment.machine_environment(os.environ, self._config), **variables}
        return self._fork("check", argv, str(self._config.directory), environ, log, pipe, on_end)

    def kill(self) -> None:
        """Kill ranks, stores, and everything that they started, wherever it hides.

        Raises:
            TransientError: Something does not die.
        """
        nursery = self._current
        root = nursery.pid if nursery is not None and nursery.alive else None
        if nursery is not None:
            nursery.kill_children()
        process.kill_strays(self._config.owner, root, _DEATH_PATIENCE_S)
        if nursery is not None:
            nursery.wait_childless(_TELL_PATIENCE_S)

    def close(self) -> None:
        """Kill everything, the pre-warmed process too."""
        self._closed = True
        # Whatever is being made is made first, so that nothing is made after this.
        self._spawner.submit(lambda: None).result()
        if self._current is not None:
            self._current.close()
        process.kill_strays(self._config.owner, None, _DEATH_PATIENCE_S)
        self._spawner.shutdown()

    def _spawn(self, plain: bool, notes: tuple[str, ...]) -> Nursery:
        # Runs in the spawner's thread only.
        if self._closed:
            raise TransientError("the launcher is closed")
        if self._current is None or not self._current.alive:
            self._current = Nursery(self._config, plain, notes, self._rewarm)
        return self._current

    def _rewarm(self, dead: Nursery) -> None:
        # One that never got ready would do no better the next time.
        if dead.ready.exception() is None:
            logger.warning("pre-warmed process %d died; warming another", dead.pid)
            # The machine may be closed at this moment.
            with contextlib.suppress(RuntimeError):
                self.warm()

    def _fork(
        self,
        kind: str,
        argv: list[str],
        directory: str,
        variables: dict[str, str],
        log: Path,
        fd: int,
        on_end: OnEnd,
    ) -> int:
        nursery = self._current
        if nursery is None:
            raise TransientError("no pre-warmed process")
        log_fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            number = next(self._numbers)
            fork = zygote.Fork(number, kind, argv, directory, variables, log_fd, fd)
            return nursery.fork(fork, on_end)
        finally:
            os.close(log_fd)


def last_lines(log: Path) -> tuple[str, ...]:
    """The end of a log: at most 20 lines and 16 KiB, oldest first; nothing if it is not there."""
    try:
        with log.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(lines[-LAST_LINES:])
