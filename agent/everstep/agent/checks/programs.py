"""Runs the programs of a check side by side, until all have ended or time is up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from everstep.agent.launcher import Launcher, last_lines
from everstep.agent.nursery import Ended
from everstep.core.checks import Ending
from everstep.core.errors import TransientError

logger = logging.getLogger(__name__)

_ANSWER_BYTES = 64 * 1024
"""What a pipe holds: a program that says more waits for ever, and none of ours does."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    Attributes:
        argv: Its command line.
        log: File for its output.
        variables: Environment variables beside those that all processes of the machine have.
    """

    argv: list[str]
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


class ProgramRun:
    """The programs of one check. To be used once.

    Args:
        launcher: Starts and kills them.
        programs: What to run, by local rank.
    """

    def __init__(self, launcher: Launcher, programs: Sequence[Program]) -> None:
        self._launcher = launcher
        self._programs = programs
        self._loop = asyncio.get_running_loop()
        self._ends: list[asyncio.Future[Ended]] = [self._loop.create_future() for _ in programs]
        self._pipes: list[int] = []

    async def endings(self, deadline_s: float) -> list[Ending]:
        """How they ended; whatever runs at the deadline, or when this is cancelled, is killed.

        Args:
            deadline_s: Seconds from now, > 0.

        Raises:
            TransientError: Not all could be started.
        """
        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(starting)
            await asyncio.wait(self._ends, timeout=deadline_s)
            timed_out = [not end.done() for end in self._ends]
        finally:
            # Nothing may be started after the kill.
            await asyncio.wait([starting])
            await asyncio.to_thread(self._kill)
            said = [self._read(pipe) for pipe in self._pipes]
        # Those that were killed are told of at once; one that does not die is not.
        await asyncio.wait(self._ends, timeout=1.0)
        return [
            self._ending(number, lines, late)
            for number, (lines, late) in enumerate(zip(said, timed_out, strict=True))
        ]

    def _start(self) -> None:
        for number, program in enumerate(self._programs):
            ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._pipes.append(ours)
            os.set_blocking(theirs, True)
            try:
                self._launcher.start_check(
                    program.argv,
                    program.variables,
                    theirs,
                    program.log,
                    partial(self._post, number),
                )
            finally:
                os.close(theirs)

    def _post(self, number: int, ended: Ended) -> None:
        # The loop may be gone while a machine is torn down.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._see_end, number, ended)

    def _see_end(self, number: int, ended: Ended) -> None:
        if not self._ends[number].done():
            self._ends[number].set_result(ended)

    def _kill(self) -> None:
        try:
            self._launcher.kill()
        except TransientError as error:
            # It is in no state to be told of its death; the verdict says that it timed out.
            logger.warning("a check's programs: %s", error)

    def _ending(self, number: int, lines: tuple[str, ...], timed_out: bool) -> Ending:
        end = self._ends[number]
        ended = end.result() if end.done() else None
        log = last_lines(self._programs[number].log)
        return Ending(
            local_rank=number,
            lines=lines,
            exit_code=None if ended is None else ended.exit_code,
            signal=None if ended is None else ended.signal,
            timed_out=timed_out,
            last_line=log[-1] if log else "",
        )

    @staticmethod
    def _read(pipe: int) -> tuple[str, ...]:
        said = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(pipe, _ANSWER_BYTES):
                said += chunk
        os.close(pipe)
        return tuple(said.decode(errors="replace").splitlines())
