"""Events of the kernel log in their context: per GPU, per machine, and in time.

One judge a machine, fed with every event in order. What a single line means often depends on what
came before it: a torn-down channel is normal unless a task then hangs, corrected memory errors are
healthy below a rate, and after an NVLink broke, other GPUs complain in turn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from everstep.core.senses import thresholds
from everstep.core.senses.inspection import Inspection, faulty, healthy, unobservable
from everstep.core.senses.kernel import KernelEvent, Kind, parse_event
from everstep.core.senses.kmsg import KernelRecord
from everstep.core.senses.xid import AFTER_EFFECTS, Meaning, Weight, Xid
from everstep.core.vocabulary import Symptom

DAY_S = 86_400.0

XID_ITEM = "gpu.xid"


@dataclass(frozen=True, slots=True)
class _Leader:
    """The GPU fault that others on this machine are consequences of."""

    subject: str
    text: str
    at_s: float


class KernelJudge:
    """Says what each event of one machine's kernel log means.

    Args:
        own_cgroup: Cgroup of this agent and its ranks; out-of-memory kills elsewhere under a limit
            of their own do not concern the job. Empty: every kill does.
        accept_programs: Whether what programs wrote to the kernel log counts, too; for tests, since
            only the kernel can write as the kernel.
    """

    def __init__(self, own_cgroup: str = "", accept_programs: bool = False) -> None:
        self._own_cgroup = own_cgroup.rstrip("/")
        self._accept_programs = accept_programs
        self._leader: _Leader | None = None
        self._torn_down: tuple[str, float] | None = None
        self._multiprocessor: dict[str, set[str]] = {}
        self._corrected: deque[tuple[float, int]] = deque()

    def judge(self, record: KernelRecord) -> Inspection | None:
        """What a record means, or None when it tells of nothing that matters."""
        if not (record.by_kernel or self._accept_programs):
            return None
        event = parse_event(record.text)
        return None if event is None else self._judge(event, record.at_s)

    def judge_xid(self, xid: Xid, at_s: float) -> Inspection:
        """What an Xid means that came by another way than the kernel log."""
        line = f"Xid {xid.code} on {xid.gpu}"
        return self._xid(KernelEvent(Kind.XID, f"GPU {xid.gpu}", line, xid=xid), at_s)

    def _judge(self, event: KernelEvent, at_s: float) -> Inspection:
        if event.kind is Kind.XID:
            return self._xid(event, at_s)
        if event.kind is Kind.SXID:
            return self._sxid(event, at_s)
        if event.kind is Kind.HUNG_TASK:
            return self._hung_task(event, at_s)
        if event.kind is Kind.MEMORY_CORRECTED:
            return self._memory_corrected(event, at_s)
        if event.kind is Kind.OOM_KILL:
            return self._oom_kill(event)
        return _by_itself(event)

    # --- GPUs ------------------------------------------------------------------------------------

    def _xid(self, event: KernelEvent, at_s: float) -> Inspection:
        assert event.xid is not None  # noqa: S101 - every event of the kind has one
        xid, meaning = event.xid, event.xid.meaning()
        text = f"Xid {xid.code}: {meaning.text}"
        if xid.code == 45:
            self._torn_down = (event.subject, at_s)
        if xid.code == 13 and xid.multiprocessor is not None:
            self._multiprocessor.setdefault(event.subject, set()).add(xid.multiprocessor)
        if meaning.weight is Weight.UNKNOWN:
            return unobservable(XID_ITEM, event.subject, text, event.line)
        if meaning.weight is Weight.FAULT:
            return self._gpu_fault(event, meaning.symptom, text, at_s)
        if meaning.weight is Weight.SUSPECT:
            return self._gpu_suspect(event, meaning, text, at_s)
        return healthy(XID_ITEM, event.subject, text, event.line)

    def _sxid(self, event: KernelEvent, at_s: float) -> Inspection:
        assert event.sxid is not None  # noqa: S101 - every event of the kind has one
        if not event.sxid.fatal:
            detail = f"SXid {event.sxid.code} is not fatal"
            return healthy("gpu.sxid", event.subject, detail, event.line)
        text = f"SXid {event.sxid.code}: fatal error of an NVSwitch"
        return self._gpu_fault(event, Symptom.GPU_UNAVAILABLE, text, at_s)

    def _gpu_fault(
        self, event: KernelEvent, symptom: Symptom, text: str, at_s: float
    ) -> Inspection:
        leader = self._leader
        if leader is None or at_s - leader.at_s > thresholds.FOLLOWS_S:
            leader = self._leader = _Leader(event.subject, text, at_s)
        elif leader.subject != event.subject:
            text = f"{leader.text}; then {event.subject}, {text}"
        item = "gpu.sxid" if event.kind is Kind.SXID else XID_ITEM
        return faulty(item, leader.subject, symptom, text, [event.line], confident=True)

    def _gpu_suspect(
        self, event: KernelEvent, meaning: Meaning, text: str, at_s: float
    ) -> Inspection:
        assert event.xid is not None  # noqa: S101 - only called for Xids
        leader = self._leader
        if leader is not None and at_s - leader.at_s <= thresholds.FOLLOWS_S:
            text = f"{leader.text}; then {event.subject}, {text}"
            return healthy(XID_ITEM, event.subject, text, event.line)
        where = self._multiprocessor.get(event.subject, set())
        if event.xid.code not in AFTER_EFFECTS and len(where) == 1:
            text += f", after exceptions on one multiprocessor only ({next(iter(where))})"
        return faulty(XID_ITEM, event.subject, meaning.symptom, text, [event.line])

    # --- The rest --------------------------------------------------------------------------------

    def _hung_task(self, event: KernelEvent, at_s: float) -> Inspection:
        torn = self._torn_down
        if torn is not None and 0 <= at_s - torn[1] <= thresholds.HUNG_AFTER_XID_S:
            text = f"task {event.subject} hangs {at_s - torn[1]:.0f} s after Xid 45: driver stuck"
            gone = Symptom.GPU_UNAVAILABLE
            return faulty("gpu.driver", torn[0], gone, text, [event.line], confident=True)
        text = f"task {event.subject} cannot be woken"
        return faulty("host.hung_task", event.subject, Symptom.JOB_HANG, text, [event.line])

    def _memory_corrected(self, event: KernelEvent, at_s: float) -> Inspection:
        self._corrected.append((at_s, event.count))
        while at_s - self._corrected[0][0] > DAY_S:
            self._corrected.popleft()
        total = sum(count for _, count in self._corrected)
        detail = f"{total} corrected memory errors within a day"
        if total <= thresholds.CORRECTED_PER_DAY:
            return healthy("host.memory_errors", event.subject, detail, event.line)
        symptom = Symptom.OS_KERNEL_PANIC
        return faulty("host.memory_errors", event.subject, symptom, detail, [event.line])

    def _oom_kill(self, event: KernelEvent) -> Inspection:
        ours = not event.limit or event.cgroup.startswith(self._own_cgroup)
        where = f"in {event.cgroup or 'an unknown cgroup'}"
        detail = f"{event.subject} {where} was killed for memory"
        detail += f", limit of {event.limit}" if event.limit else ", the machine ran out"
        if not ours:
            return healthy("host.oom", event.subject, detail, event.line)
        return faulty("host.oom", event.subject, Symptom.CPU_OOM, detail, [event.line])


_BY_ITSELF: dict[Kind, tuple[str, Symptom, str, bool]] = {
    Kind.PANIC: ("host.kernel", Symptom.OS_KERNEL_PANIC, "the kernel failed", True),
    Kind.LOCKUP: ("host.kernel", Symptom.OS_KERNEL_PANIC, "a processor is stuck", True),
    Kind.MEMORY_UNCORRECTED: (
        "host.memory_errors",
        Symptom.OS_KERNEL_PANIC,
        "uncorrected memory error",
        True,
    ),
    Kind.FILESYSTEM: ("host.filesystem", Symptom.DISK_FAULT, "file system error", True),
    Kind.DISK: ("host.disk", Symptom.DISK_FAULT, "disk error", True),
    Kind.SHARE_SILENT: (
        "host.share",
        Symptom.FILESYSTEM_MOUNT,
        "file server does not answer",
        False,
    ),
}


def _by_itself(event: KernelEvent) -> Inspection:
    if event.kind is Kind.SHARE_BACK:
        return healthy("host.share", event.subject, "file server answers again", event.line)
    item, symptom, text, confident = _BY_ITSELF[event.kind]
    subject = event.subject or "kernel"
    return faulty(item, subject, symptom, f"{text}: {event.line}", [event.line], confident)
