"""Disk, memory pressure, clock, mounts and the last boot of this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from everstep.core.senses import thresholds
from everstep.core.senses.host import (
    ClockWatch,
    DiskUse,
    judge_disk,
    judge_last_boot,
    judge_memory,
    judge_mount,
    mount_of,
    parse_mounts,
)
from everstep.core.senses.inspection import Inspection, unobservable

PSTORES = (Path("/sys/fs/pstore"), Path("/var/lib/systemd/pstore"))


class HostProbe:
    """Looks at this machine.

    Args:
        paths: Where the job reads and writes.
        wall: The wall clock, in seconds.
        clock: The monotonic clock, in seconds.
        proc: Where the proc file system is mounted.
    """

    def __init__(
        self,
        paths: Sequence[str],
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
    ) -> None:
        self._wall, self._clock, self._proc = wall, clock, proc
        self._clock_watch = ClockWatch()
        self._asked: dict[str, _Asked] = {}
        mounts = self._mounts()
        self._mount_points = sorted({mount_of(os.path.realpath(p), mounts) for p in paths})

    def look(self) -> list[Inspection]:
        """Look at everything once; a file system that does not answer holds nobody up."""
        found = [self._clock_watch.look(self._wall(), self._clock()), self._memory()]
        mounts = self._mounts()
        for point in self._mount_points:
            found += self._look_at(point, point in mounts)
        return found

    def _mounts(self) -> frozenset[str]:
        try:
            return parse_mounts((self._proc / "self/mountinfo").read_text())
        except OSError:
            return frozenset()

    def _memory(self) -> Inspection:
        try:
            return judge_memory((self._proc / "pressure/memory").read_text())
        except OSError as error:
            return unobservable("host.memory", "memory", f"memory pressure: {error.strerror}")

    def _look_at(self, point: str, mounted: bool) -> list[Inspection]:
        if not mounted:
            return [judge_mount(point, mounted, "")]
        asked = self._asked.get(point)
        if asked is None:
            asked = self._asked[point] = _Asked(point, self._clock())
        asked.wait()
        answer = asked.answer
        if answer is None:
            for_s = self._clock() - asked.since_s
            if for_s < thresholds.MOUNT_DEADLINE_S:
                return []
            return [judge_mount(point, mounted, f"has not answered for {for_s:.0f} s")]
        del self._asked[point]
        if isinstance(answer, str):
            return [judge_mount(point, mounted, answer)]
        return [judge_mount(point, mounted, ""), judge_disk(point, answer)]


class _Asked:
    """One question to a file system; a thread of its own, since it may never be answered."""

    def __init__(self, point: str, since_s: float) -> None:
        self._point = point
        self.since_s = since_s
        self.answer: DiskUse | str | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for as long as a healthy file system takes."""
        self._thread.join(0.01)

    def _ask(self) -> None:
        try:
            use = os.statvfs(self._point)
        except OSError as error:
            self.answer = f"does not answer: {error.strerror}"
            return
        self.answer = DiskUse(
            total_bytes=use.f_blocks * use.f_frsize,
            free_bytes=use.f_bavail * use.f_frsize,
            total_inodes=use.f_files,
            free_inodes=use.f_favail,
            read_only=bool(use.f_flag & os.ST_RDONLY),
        )


def look_at_last_boot(stores: Sequence[Path] = PSTORES) -> Inspection:
    """Whether the kernel crashed before this boot."""
    records: list[tuple[str, float, str]] = []
    there = False
    for store in stores:
        try:
            files = sorted(path for path in store.rglob("*") if path.is_file())
            there = there or store.is_dir()
            for path in files:
                age_s = time.time() - path.stat().st_mtime
                records.append((path.name, age_s, path.read_text(errors="replace")))
        except OSError as error:
            return unobservable("host.last_boot", "kernel", f"{store}: {error.strerror}")
    if not there:
        return unobservable("host.last_boot", "kernel", "firmware keeps no log of crashes here")
    return judge_last_boot(records)


def own_cgroup(proc: Path = Path("/proc")) -> str:
    """The cgroup of this process and its children; empty for the root or when nobody knows."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    places = {controllers: path for _, controllers, path in (x.split(":", 2) for x in lines)}
    return (places.get("memory") or places.get("", "")).rstrip("/")
