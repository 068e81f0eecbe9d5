"""What the kernel knows of processes and does to them, and Python has no words for.

Linux only. Standard library only: a pre-warmed process imports it before everything else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from everstep.core.errors import TransientError

ENV_OWNER = "EVERSTEP_OWNER"
"""Marks every process of one machine, and all that they start: its directory."""

PREPARING = "/code"
"""Behind the mark of a machine, that of what makes a code version ready while its ranks run."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.002

# Loaded before any fork: loading takes locks that a child might find taken.
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is not a zombie.

    Attributes:
        pid: Its id.
        parent: Its parent's id.
        session: Id of its session, which is the id of the process that began it.
    """

    pid: int
    parent: int
    session: int


def die_with(parent: int) -> None:
    """Have this process killed when the thread that made it ends.

    Args:
        parent: Process id of the expected parent; when it is gone already, this does not return.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that none gets out of sight."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def processes() -> Iterator[Process]:
    """All processes that can be seen, without zombies."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (process := _read(int(entry.name))) is not None:
            yield process


def strays(owner: str, root: int | None) -> list[int]:
    """What belongs to a machine, apart from its pre-warmed process and that one's own session.

    A process belongs to it by its mark, which it cannot take off, or by descent from `root`, which
    holds for one that was given another environment.

    Args:
        owner: Value of the mark.
        root: The living pre-warmed process, or None.
    """
    everybody = {process.pid: process for process in processes()}
    children: dict[int, list[int]] = {}
    for process in everybody.values():
        children.setdefault(process.parent, []).append(process.pid)
    descending: set[int] = set()
    heads = [root] if root is not None else []
    while heads:
        new = children.get(heads.pop(), [])
        descending.update(new)
        heads.extend(new)
    mark = f"{ENV_OWNER}={owner}".encode()
    return sorted(
        process.pid
        for process in everybody.values()
        if process.session != root
        and process.pid != os.getpid()
        and (process.pid in descending or _is_marked(process.pid, mark))
    )


def kill_strays(owner: str, root: int | None, timeout_s: float) -> None:
    """Kill until nothing is left.

    Args:
        owner: As for `strays`.
        root: As for `strays`.
        timeout_s: How long a process may take to die, > 0.

    Raises:
        TransientError: Something does not die, for instance as it waits for a dead disk.
    """
    deadline_s = time.monotonic() + timeout_s
    while pids := strays(owner, root):
        if time.monotonic() > deadline_s:
            raise TransientError(f"processes {pids} do not die within {timeout_s} s")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL_S)


def main_thread_ran_s(pid: int) -> float | None:
    """How long a process's main thread has been on a core; None when it is gone or nobody tells.

    What the kernel counts in nanoseconds at each switch; `/proc/PID/stat` has it in ticks of 10 ms.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def num_threads() -> int:
    """Threads of this process that the kernel knows, Python's and others'."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _read(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name, in brackets, may itself hold brackets and blanks.
    state, parent, _group, session = stat.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else Process(pid, int(parent), int(session))


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        # It is gone, or another user's and so none of ours.
        return False


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
