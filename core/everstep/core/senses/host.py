"""Disk, memory pressure, clock, mounts and the last boot's crash, from what the kernel tells."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from everstep.core.senses import thresholds
from everstep.core.senses.inspection import Inspection, faulty, healthy, unobservable
from everstep.core.vocabulary import Symptom


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Room on a file system.

    Attributes:
        total_bytes: Its size.
        free_bytes: What users other than root may still write.
        total_inodes: Files that fit; 0 when there is no limit.
        free_inodes: Files that still fit.
        read_only: Whether it is mounted read-only.
    """

    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int
    read_only: bool


def judge_disk(path: str, use: DiskUse) -> Inspection:
    """Whether a job can go on writing there."""
    if use.read_only:
        return faulty("host.space", path, Symptom.DISK_FAULT, "is mounted read-only")
    if use.total_bytes == 0:
        return unobservable("host.space", path, "the file system does not tell its size")
    free = use.free_bytes / use.total_bytes
    detail = f"{use.free_bytes / 1e9:.1f} GB free ({free:.1%})"
    if free < thresholds.DISK_FREE_RATIO:
        return faulty("host.space", path, Symptom.DISK_SPACE, detail)
    if use.total_inodes and use.free_inodes / use.total_inodes < thresholds.INODES_FREE_RATIO:
        detail = f"{use.free_inodes} of {use.total_inodes} files left"
        return faulty("host.space", path, Symptom.DISK_SPACE, detail)
    return healthy("host.space", path, detail)


_FULL_STALL = re.compile(r"^full .*avg10=([\d.]+)", re.MULTILINE)


def judge_memory(pressure: str) -> Inspection:
    """Whether the machine runs out of memory, from /proc/pressure/memory."""
    found = _FULL_STALL.search(pressure)
    if found is None:
        return unobservable("host.memory", "memory", "the kernel tells no memory pressure")
    stalled = float(found.group(1))
    detail = f"all tasks waited for memory {stalled:g} % of 10 s"
    if stalled > thresholds.MEMORY_FULL_STALL_PERCENT:
        return faulty("host.memory", "memory", Symptom.CPU_OOM, detail)
    return healthy("host.memory", "memory", detail)


class ClockWatch:
    """Notices steps of the wall clock against the clock that never steps."""

    def __init__(self) -> None:
        self._offset_s: float | None = None

    def look(self, wall_s: float, monotonic_s: float) -> Inspection:
        """Take in both clocks, read at one moment."""
        offset_s = wall_s - monotonic_s
        before_s, self._offset_s = self._offset_s, offset_s
        if before_s is None:
            return healthy("host.clock", "clock", "no step yet")
        step_s = offset_s - before_s
        if abs(step_s) > thresholds.CLOCK_JUMP_S:
            detail = f"the wall clock was set by {step_s:+.1f} s"
            return faulty("host.clock", "clock", Symptom.EXTERNAL_SERVICE_ERROR, detail)
        return healthy("host.clock", "clock", f"moved by {step_s * 1e3:+.1f} ms")


def parse_mounts(mountinfo: str) -> frozenset[str]:
    """The mount points in /proc/self/mountinfo."""
    lines = (line.split(" ") for line in mountinfo.splitlines())
    return frozenset(
        re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), fields[4])
        for fields in lines
        if len(fields) > 4
    )


def mount_of(path: str, mounts: Iterable[str]) -> str:
    """The mount point that a path lies under."""
    under = [m for m in mounts if path == m or path.startswith(m.rstrip("/") + "/")]
    return max(under, key=len, default="/")


def judge_mount(path: str, mounted: bool, answer: str) -> Inspection:
    """Whether a file system that was there is there still.

    Args:
        path: Its mount point.
        mounted: Whether the kernel lists it.
        answer: What asking it came to; empty when it answered.
    """
    if not mounted:
        return faulty("host.mount", path, Symptom.FILESYSTEM_MOUNT, "is not mounted any more")
    if answer:
        return faulty("host.mount", path, Symptom.FILESYSTEM_MOUNT, answer)
    return healthy("host.mount", path, "mounted, answers")


_CRASH = re.compile(r"Kernel panic|\bOops\b|BUG: |hard LOCKUP")


def judge_last_boot(records: Iterable[tuple[str, float, str]]) -> Inspection:
    """Whether the kernel crashed before this boot, from what firmware kept of its log.

    Args:
        records: Name, age in seconds and text of each record.
    """
    for name, age_s, text in records:
        days = age_s / 86_400
        line = next((line for line in text.splitlines() if _CRASH.search(line)), None)
        if line is not None and days <= thresholds.PSTORE_DAYS:
            detail = f"the kernel crashed {days:.1f} days ago ({name})"
            symptom = Symptom.OS_KERNEL_PANIC
            return faulty("host.last_boot", "kernel", symptom, detail, [line])
    return healthy("host.last_boot", "kernel", "firmware kept no crash")
