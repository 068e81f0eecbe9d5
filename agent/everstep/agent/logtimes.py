"""Notes when the logs of an attempt's ranks grow; ranks write them without anybody's help."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from everstep.core.logtimes import SUFFIX, Note

logger = logging.getLogger(__name__)

EVERY_S = 0.05
"""Between two looks: how exactly a line's time is known. A look costs a system call a rank."""


class LogTimes:
    """Watches logs and keeps a file of times beside each.

    Args:
        logs: The logs; they may come into being later.
        wall: The wall clock, in seconds.
    """

    def __init__(self, logs: Iterable[Path], wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._sizes = {log: _size(log) for log in logs}
        self._failed = False

    async def run(self) -> None:
        """Look for ever, and once more when cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(EVERY_S)
        finally:
            self.look()

    def look(self) -> None:
        """Note every log that has grown since the last look."""
        for log, before in self._sizes.items():
            size = _size(log)
            if size > before:
                self._sizes[log] = size
                self._write(log, Note(self._wall(), size))

    def _write(self, log: Path, note: Note) -> None:
        """Training goes on when times cannot be kept: a full disk is told by other senses."""
        try:
            with log.with_name(log.name + SUFFIX).open("ab") as file:
                file.write(note.encode())
        except OSError as error:
            if not self._failed:
                logger.warning("times of %s cannot be kept: %s", log, error)
            self._failed = True


def _size(log: Path) -> int:
    with contextlib.suppress(OSError):
        return log.stat().st_size
    return 0
