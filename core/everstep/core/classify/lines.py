"""What the head of a line tells: which rank, which GPU, what time."""

from __future__ import annotations

import re

_RANK = re.compile(
    r"\[rank ?(\d+)\]|\brank[ :=]+(\d+)\b|^\[\d+,(\d+)\]<std|^\s*(\d+): |\bglobal_rank[ =:]+(\d+)"
    r"|^\[default\d+\]:\[rank(\d+)\]",
    re.IGNORECASE,
)
_GPU = re.compile(
    r"\(?pci:([0-9a-f:.]+)\)?|\bon gpu ?(\d+)|\bgpu ?([0-9a-f]{4,8}:[0-9a-f:.]+)", re.IGNORECASE
)
_CLOCK = re.compile(r"(?<![\d.:])(\d{1,2}):(\d\d):(\d\d(?:[.,]\d{1,9})?)(?![:\d])")
_UPTIME = re.compile(r"^(?:<\d+>)?\[ *(\d+\.\d{3,9})\]")
_HEAD = 160


def rank_of(text: str) -> int | None:
    """The global rank that a line names first, or None."""
    found = _RANK.search(text)
    return None if found is None else next(int(group) for group in found.groups() if group)


def gpu_of(text: str) -> str | None:
    """The PCI address or index of the GPU that a line names, in lower case, or None."""
    found = _GPU.search(text)
    if found is None:
        return None
    return next(group for group in found.groups() if group).lower().rstrip(".0")


def clock_of(text: str) -> float | None:
    """Seconds of the day, or of uptime, in the head of a line; None without a time."""
    head = text[:_HEAD]
    uptime = _UPTIME.match(head)
    if uptime is not None:
        return float(uptime[1])
    found = _CLOCK.search(head)
    if found is None:
        return None
    return int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3].replace(",", "."))
