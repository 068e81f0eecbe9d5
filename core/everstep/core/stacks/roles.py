"""Which of a rank's threads tells where the rank stands, and what its child processes are.

Paper: ByteRobust 2025, section 5, which looks at training processes, data loaders and checkpoint
writers. Helper threads (pin-memory, watchdogs, progress bars, servers) stand still by nature and
are not looked at; neither are children that are neither loaders nor writers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from everstep.core.stacks.dump import RankDump, Stack, Thread
from everstep.core.stacks.place import Place, Stand, is_engine, place_of, short_name

MAIN = "MainThread"


class Role(StrEnum):
    """What a child process is there for."""

    LOADER = "data loader"
    WRITER = "checkpoint writer"


@dataclass(frozen=True, slots=True)
class Child:
    """A child process that matters, and where its main thread stands."""

    role: Role
    pid: int
    place: Place


_LOADER = re.compile(r"pt_data_worker|data_?worker|data_?loader", re.IGNORECASE)
_WRITER = re.compile(r"checkpoint|ckpt|async_save|writer", re.IGNORECASE)
_BEGINS_THREAD = ("_bootstrap", "_bootstrap_inner", "_worker")


class Places:
    """Where threads stand, worked out once for each stack."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Stack, Place]] = {}

    def of(self, stack: Stack) -> Place:
        """Where a thread with this stack stands."""
        known = self._known.get(id(stack))
        if known is None:
            # The stack is kept, so that its number belongs to it for good.
            known = self._known[id(stack)] = (stack, place_of(stack))
        return known[1]

    def of_rank(self, dump: RankDump) -> Place | None:
        """Where a rank stands; None when it did not say."""
        if not dump.threads:
            return None
        own = dump.threads[0].pid
        threads = [thread for thread in dump.threads if thread.pid == own]
        main = main_thread(threads)
        place = self.of(main.stack)
        if main.stack.frames and is_engine(main.stack.frames[0]) and len(threads) > 1:
            inside = next((t for t in threads if t is not main and _is_autograd(t)), None)
            if inside is not None:
                deeper = self.of(inside.stack)
                return Place((*place.key, *deeper.key), deeper.stand, deeper.at)
        return None if place.stand is Stand.NOWHERE else place

    def of_children(self, dump: RankDump) -> tuple[Child, ...]:
        """Where the rank's loaders and writers stand."""
        if not dump.threads:
            return ()
        own = dump.threads[0].pid
        if dump.threads[-1].pid == own:
            return ()
        by_pid: dict[int, list[Thread]] = {}
        for thread in dump.threads:
            if thread.pid != own:
                by_pid.setdefault(thread.pid, []).append(thread)
        found: list[Child] = []
        for pid, threads in by_pid.items():
            role = _role(threads)
            if role is not None:
                found.append(Child(role, pid, self.of(main_thread(threads).stack)))
        return tuple(found)


def main_thread(threads: Sequence[Thread]) -> Thread:
    """The thread that began the process; where nothing says which, the one that runs a program."""
    for thread in threads:
        if thread.name == MAIN:
            return thread
    for thread in threads:
        if thread.os_thread_id is not None and thread.os_thread_id == thread.pid:
            return thread
    for thread in threads:
        if thread.stack.frames and short_name(thread.stack.frames[-1]) == "<module>":
            return thread
    return next((thread for thread in threads if not _was_begun(thread)), threads[0])


def _was_begun(thread: Thread) -> bool:
    """Whether the program began this thread, so that it is not the main one."""
    frames = thread.stack.frames
    return not frames or short_name(frames[-1]) in _BEGINS_THREAD


def _is_autograd(thread: Thread) -> bool:
    # Its threads begin in C++, so that no bootstrap of Python's is on their stacks.
    return not _was_begun(thread)


def _role(threads: Iterable[Thread]) -> Role | None:
    for thread in threads:
        names = f"{thread.process} {thread.name}"
        frames = thread.stack.frames
        if _LOADER.search(names) or any(short_name(f) == "_worker_loop" for f in frames):
            return Role.LOADER
        if _WRITER.search(names) or any(_WRITER.search(short_name(f)) for f in frames):
            return Role.WRITER
    return None
