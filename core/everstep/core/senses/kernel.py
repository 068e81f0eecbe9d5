"""Lines of the kernel log as events. What an event means in its context: `kernel_judge`.

The rules follow the kernel's own format strings. Banners that only quote an option
(`errors=remount-ro`), traces under a report and devices without a medium match none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from everstep.core.senses.xid import SXid, Xid, parse_sxid, parse_xid


class Kind(StrEnum):
    """What a line of the kernel log tells of."""

    XID = "xid"
    SXID = "sxid"
    MEMORY_CORRECTED = "memory_corrected"
    MEMORY_UNCORRECTED = "memory_uncorrected"
    OOM_KILL = "oom_kill"
    HUNG_TASK = "hung_task"
    LOCKUP = "lockup"
    PANIC = "panic"
    FILESYSTEM = "filesystem"
    DISK = "disk"
    SHARE_SILENT = "share_silent"
    SHARE_BACK = "share_back"


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One event of the kernel log.

    Attributes:
        kind: What happened.
        subject: To whom: a device, a task, a server; empty where the line names none.
        line: The line itself.
        count: How many errors the line reports.
        cgroup: Cgroup of the victim of an out-of-memory kill, or empty.
        limit: Cgroup whose limit was hit, or empty when the whole machine ran out.
        xid: The Xid, for that kind.
        sxid: The SXid, for that kind.
    """

    kind: Kind
    subject: str
    line: str
    count: int = 1
    cgroup: str = ""
    limit: str = ""
    xid: Xid | None = None
    sxid: SXid | None = None


_DISK = r"(?P<subject>(?!loop|fd\d|sr\d|ram|zram)[\w-]+)"
_UNCORRECTED_BIT = 1 << 61

_RULES: tuple[tuple[Kind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (Kind.PANIC, r"Kernel panic - not syncing"),
        (Kind.PANIC, r"^(?:kernel )?BUG: (?:unable to handle|kernel NULL pointer)"),
        (Kind.PANIC, r"\bkernel BUG at |^Oops: |Internal error: Oops"),
        (Kind.LOCKUP, r"BUG: soft lockup - (?P<subject>CPU#\d+) stuck"),
        (Kind.LOCKUP, r"Watchdog detected hard LOCKUP on (?P<subject>cpu \d+)"),
        (Kind.LOCKUP, r"rcu: INFO: \w+ (?:self-)?detected (?:expedited )?stall"),
        (Kind.HUNG_TASK, r"INFO: task (?P<subject>\S+:\d+) blocked for more than \d+ seconds"),
        (Kind.MEMORY_CORRECTED, r"EDAC (?P<subject>MC\d+): (?P<count>\d+) CE "),
        (Kind.MEMORY_UNCORRECTED, r"EDAC (?P<subject>MC\d+): (?P<count>\d+) UE "),
        (Kind.MEMORY_CORRECTED, r"CMCI storm detected"),
        (Kind.MEMORY_UNCORRECTED, r"(?P<subject>CPU \d+): Machine Check Exception: "),
        (Kind.MEMORY_UNCORRECTED, r"Uncorrected hardware memory error"),
        (Kind.FILESYSTEM, rf"(?:EXT[234]|F2FS)-fs error \(device {_DISK}\)"),
        (Kind.FILESYSTEM, rf"EXT[234]-fs \({_DISK}\): Remounting filesystem read-only"),
        (Kind.FILESYSTEM, rf"XFS \({_DISK}\): (?:Corruption|Internal error|.*[Ss]hutting down)"),
        (Kind.FILESYSTEM, rf"XFS \({_DISK}\): (?:metadata|log) I/O error"),
        (Kind.FILESYSTEM, rf"BTRFS (?:error|critical) \(device {_DISK}\b"),
        (Kind.FILESYSTEM, rf"Aborting journal on device {_DISK}"),
        (Kind.DISK, rf"(?:I/O|critical (?:medium|target|nexus)) error, dev {_DISK},"),
        (Kind.DISK, rf"Buffer I/O error on dev(?:ice)? {_DISK},"),
        (Kind.DISK, r"nvme (?P<subject>nvme\d+): (?:Device not ready|Removing after probe)"),
        (Kind.DISK, r"nvme (?P<subject>nvme\d+): controller is down"),
        (Kind.SHARE_SILENT, r"nfs: server (?P<subject>\S+) not responding"),
        (Kind.SHARE_BACK, r"nfs: server (?P<subject>\S+) OK$"),
    )
)

_STATUS = re.compile(
    r"(?P<subject>CPU \d+): Machine Check(?: Event)?: \d+ Bank \d+: (?P<s>[0-9a-f]{16})"
)
_OOM = re.compile(r"oom-kill:constraint=(?P<rest>\S*),task=(?P<task>.*),pid=(?P<pid>\d+),uid=\d+")
_OOM_CGROUP = re.compile(r"task_memcg=(?P<cgroup>[^,]*)")
_OOM_LIMIT = re.compile(r"oom_memcg=(?P<limit>[^,]*)")

_WORTH_A_LOOK = re.compile(
    r"Xid|error|BUG|Oops|panic|LOCKUP|stall|blocked for|EDAC|CMCI|Machine Check|Remounting|XFS|"
    r"Aborting|oom-kill|nvme|nfs:"
)


def parse_event(line: str) -> KernelEvent | None:
    """What a line of the kernel log tells of, or None when it tells of nothing that matters."""
    if _WORTH_A_LOOK.search(line) is None:
        return None
    if (xid := parse_xid(line)) is not None:
        return KernelEvent(Kind.XID, f"GPU {xid.gpu}", line, xid=xid)
    if (sxid := parse_sxid(line)) is not None:
        return KernelEvent(Kind.SXID, f"NVSwitch {sxid.switch}", line, sxid=sxid)
    if (oom := _OOM.search(line)) is not None:
        return _oom_kill(oom, line)
    if (status := _STATUS.search(line)) is not None:
        bad = int(status["s"], 16) & _UNCORRECTED_BIT
        kind = Kind.MEMORY_UNCORRECTED if bad else Kind.MEMORY_CORRECTED
        return KernelEvent(kind, status["subject"], line)
    for kind, pattern in _RULES:
        if (found := pattern.search(line)) is not None:
            groups = found.groupdict()
            count = int(groups.get("count") or 1)
            return KernelEvent(kind, groups.get("subject") or "", line, count)
    return None


def _oom_kill(found: re.Match[str], line: str) -> KernelEvent:
    cgroup = _OOM_CGROUP.search(found["rest"])
    limit = _OOM_LIMIT.search(found["rest"])
    return KernelEvent(
        Kind.OOM_KILL,
        f"{found['task']}:{found['pid']}",
        line,
        cgroup="" if cgroup is None else cgroup["cgroup"],
        limit="" if limit is None else limit["limit"],
    )
