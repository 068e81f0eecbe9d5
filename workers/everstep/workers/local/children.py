"""Child processes of the local cluster: started, watched, started again, and never left behind.

Each child runs in a session of its own, so that Ctrl-C reaches only us and things stop in order.
Each is on a leash: it dies with us, even when we are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everstep.agent.leash import leashed

logger = logging.getLogger(__name__)

RESTART_PAUSE_S = 0.2
"""Between the end of a process and its next start, so that a broken one does not spin."""


@dataclass(slots=True)
class Child:
    """One child process.

    Attributes:
        name: For messages and the log file's name.
        command: Program and arguments.
        environment: Its whole environment.
        log: File that its output is appended to.
        keep_alive: Whether it is started again when it ends without having been told to.
        on_restart: Told its name and how it ended each time.
        restarts: How often that happened.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    keep_alive: bool
    on_restart: Callable[[str, int], None] | None = None
    process: asyncio.subprocess.Process | None = field(default=None, init=False)
    restarts: int = field(default=0, init=False)
    stopping: bool = field(default=False, init=False)
    _watch: asyncio.Task[None] | None = field(default=None, init=False)

    async def start(self) -> None:
        """Start it, and watch it from now on."""
        await self._spawn()
        self._watch = asyncio.create_task(self._keep())

    @property
    def pid(self) -> int:
        """Its process id; 0 while it is not running."""
        return self.process.pid if self.process and self.process.returncode is None else 0

    def kill(self) -> None:
        """SIGKILL, as a fault would."""
        if self.process and self.process.returncode is None:
            self.process.kill()

    async def stop(self, patience_s: float) -> None:
        """Ask it to stop, and kill it when it does not within the patience."""
        self.stopping = True
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), patience_s)
        except TimeoutError:
            logger.warning("%s did not stop within %.0f s and is killed", self.name, patience_s)
            self.kill()
            await self.process.wait()

    async def _spawn(self) -> None:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self.process = await asyncio.create_subprocess_exec(
                *leashed(self.command),
                env=dict(self.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)

    async def _keep(self) -> None:
        while True:
            assert self.process is not None  # noqa: S101 - started before it is watched
            code = await self.process.wait()
            if self.stopping or not self.keep_alive:
                return
            logger.warning("%s ended (%s); starting it again", self.name, code)
            await asyncio.sleep(RESTART_PAUSE_S)
            await self._spawn()
            self.restarts += 1
            if self.on_restart is not None:
                self.on_restart(self.name, code)
