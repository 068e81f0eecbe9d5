"""Kills for memory, as a cgroup counts them: what tells them from a kill by a person."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")

_COUNTER = "oom_kill"


class OomKills:
    """Hands out the kills that one cgroup has counted, each to one process that died of it.

    The kernel counts a kill before it sends the signal, so that whoever sees the end of a process
    finds its kill counted. A kill of a process that is no rank, a data loader's worker, is handed
    to the rank that ends for want of it, so that it is not taken for a later one's. Safe to use
    from several threads.

    Args:
        files: Where the counter may lie; the first that is there counts, none counts nothing.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._lock = threading.Lock()
        self._file = next((file for file in files if _read(file) is not None), None)
        self._handed_out = self._counted()

    def claim(self) -> bool:
        """Take one kill that nobody has taken yet; False when there is none, or nobody counts."""
        with self._lock:
            if self._counted() <= self._handed_out:
                return False
            self._handed_out += 1
            return True

    def _counted(self) -> int:
        return 0 if self._file is None else _read(self._file) or 0


def counters(cgroup: str, root: Path = CGROUPS) -> tuple[Path, ...]:
    """Where the kernel may keep the counter of a cgroup, in either version.

    Args:
        cgroup: Its path as /proc/PID/cgroup has it; empty for the root. In a container that is the
            host's path, while the container's own cgroup is mounted as the root.
        root: Where cgroups are mounted.
    """
    places = [cgroup.strip("/"), ""] if cgroup.strip("/") else [""]
    return tuple(
        root / base / place / name
        for base, name in (("memory", "memory.oom_control"), ("", "memory.events"))
        for place in places
    )


def _read(file: Path) -> int | None:
    """The counter's value, or None when it is not there."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    values = (line.split() for line in lines)
    return next((int(v[1]) for v in values if len(v) == 2 and v[0] == _COUNTER), None)
