"""Records of the kernel log, as /dev/kmsg and journald write them, and the count of lost ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

KERNEL_FACILITY = 0
"""What the kernel itself writes; a program that writes to /dev/kmsg always gets another one."""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record of the kernel log.

    Attributes:
        sequence: Number of the record since boot; None where the source has none.
        facility: Who wrote it; 0 is the kernel.
        level: Severity, 0 (emergency) to 7 (debug).
        at_s: Seconds since boot, on the monotonic clock.
        text: The message, without its continuation lines.
    """

    sequence: int | None
    facility: int
    level: int
    at_s: float
    text: str

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel wrote it, and not some program."""
        return self.facility == KERNEL_FACILITY


def parse_record(raw: bytes) -> KernelRecord | None:
    r"""Read one record of /dev/kmsg: `prio,seq,us,flags[,...];text\n KEY=value\n`.

    Returns:
        The record, or None when it is not one.
    """
    head, separator, rest = raw.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or not all(field.isdigit() for field in fields[:3]):
        return None
    priority, sequence, at_us = (int(field) for field in fields[:3])
    text = rest.split("\n", 1)[0]
    return KernelRecord(sequence, priority >> 3, priority & 7, at_us / 1e6, text)


def parse_journal(line: bytes) -> KernelRecord | None:
    """Read one line of `journalctl -k -o json`.

    Returns:
        The record, or None when it is not one. Journald gives no sequence number.
    """
    try:
        entry: Any = json.loads(line)
        entry = cast("dict[str, Any]", entry)
        text = entry["MESSAGE"]
        if isinstance(text, list):  # how journald writes what is not valid text
            text = bytes(cast("list[int]", text)).decode("utf-8", "replace")
        at_s = int(entry["__MONOTONIC_TIMESTAMP"]) / 1e6
        facility, level = int(entry.get("SYSLOG_FACILITY", 0)), int(entry.get("PRIORITY", 6))
        return KernelRecord(None, facility, level, at_s, str(text))
    except (KeyError, ValueError, TypeError):
        return None


class SequenceGaps:
    """Counts records that were overwritten before they were read."""

    def __init__(self) -> None:
        self.lost = 0
        self._next: int | None = None

    def note(self, record: KernelRecord) -> int:
        """Take in a record; returns how many were lost just before it."""
        if record.sequence is None:
            return 0
        missed = 0 if self._next is None else max(0, record.sequence - self._next)
        self._next = record.sequence + 1
        self.lost += missed
        return missed
