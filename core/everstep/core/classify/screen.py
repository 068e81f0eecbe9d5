"""Which lines of a block of bytes are worth reading, at the speed of memory.

Nearly all lines of a healthy log say nothing to a classifier. A handful of word stems, each looked
for with the C library's search, finds the rest several times faster than any regular expression. A
test holds that every rule's examples contain a stem.
"""

from __future__ import annotations

STEMS: tuple[bytes, ...] = tuple(
    stem.encode()
    for stem in (
        "error", "fail", "xid", "warn", "fault", "exception", "traceback", "abort", "kill",
        "panic", "bug:", "lockup", "stall", "corrupt", "timed out", "timeout", "nan", "inf ",
        "overflow", "oom", "memory", "mce:", "machine check", "no space", "closed", "refused",
        "reset", "unable", "invalid", "illegal", "signal", "exit", "not found", "checkpoint",
        "link", "state d", "read-only", "remount", "mismatch", "missing", "lost", "err!", "hung",
        "blocked for", "device", "file \"", "terminat", "preempt", "cancel", "slow", "denied",
        "errno", "mounted", ".py:", "+0x", "cannot", "assert", "oops", "unhandled", "not respond",
        "taken", "scale", "spik", "straggl", "dropped", "raisedsignal", "nfs", "stale", "retry",
        "in use", "quota", "ran out", "driver", "too many", "[errno", "uncorrect", "_barrier",
        "clients", "container",
    )
)  # fmt: skip


def interesting(block: bytes) -> list[tuple[int, int]]:
    """Find the lines that contain a stem.

    Args:
        block: Whole lines, in lower case.

    Returns:
        Start and end (without the newline) of each, ascending.
    """
    found: dict[int, int] = {}
    for stem in STEMS:
        at = block.find(stem)
        while at >= 0:
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            found[block.rfind(b"\n", 0, at) + 1] = end
            at = block.find(stem, end)
    return sorted(found.items())
