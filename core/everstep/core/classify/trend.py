"""Speed and loss out of trainers' step lines: is the end of the excerpt like its beginning?

Only the head and the tail of a file are looked at; the analyzer follows a live job with every step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading

JUMP_RATIO = 5.0
"""Growth of loss or gradient norm that is an alert (paper, section 4.1)."""
_SLOWER_RATIO = 0.04
_NOISE_DEVIATIONS = 5.0
_LASTING_STEPS = 2
_FEWEST_STEPS = 5

_SLOW = Reading(Symptom.MFU_DECLINE, Label.GPU_HARDWARE, Action.CHECK, 0.5)
_JUMPED = Reading(Symptom.LOSS_SPIKE, Label.UNKNOWN, Action.CHECK, 0.5)

_NUMBER = r"\W{0,6}([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"
_SPEED = re.compile(
    r"(?:t(?:era)?flops?(?:/s)?(?:/gpu)?|mfu|tokens(?:/|_per_)s\w*|tokens per second|tps"
    r"|samples(?:/|_per_)s\w*"
    r"|samplespersec|throughput)(?: per gpu)?(?: \([^)]*\))?" + _NUMBER,
    re.IGNORECASE,
)
_TIME = re.compile(
    r"(?:elapsed time per iteration|step[_ ]time|iter(?:ation)?[_ ]time|time/step|sec/it)"
    r"(?: ?\([^)]*\))?" + _NUMBER,
    re.IGNORECASE,
)
_COLUMN = re.compile(r"[A-Za-z_][\w /.%()-]*")
_LOSS = re.compile(r"\b(?:lm[ _])?(?:train[ _/])?loss\b['\"]?" + _NUMBER, re.IGNORECASE)
_NORM = re.compile(r"\bgrad(?:ient)?[_ ]?norm\b['\"]?" + _NUMBER, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Trend:
    """A change that lasts to the end of the excerpt, from which line on, and in words."""

    reading: Reading
    line: int
    reason: str


def trend(lines: Sequence[tuple[int, str]]) -> Trend | None:
    """Look for a lasting slowdown, or a jump of loss or gradient norm.

    Args:
        lines: Numbers and texts of the excerpt's lines, ascending.

    Returns:
        The change, or None when the end is like the beginning or there are too few steps.
    """
    lines = _named(lines)
    for pattern, slower_is_higher in ((_SPEED, False), (_TIME, True)):
        at = _slowed(_series(lines, pattern), slower_is_higher)
        if at is not None:
            return Trend(_SLOW, at, "steps became slower and stayed so")
    for pattern in (_LOSS, _NORM):
        series = _series(lines, pattern)
        if len(series) >= _FEWEST_STEPS:
            before = median(value for _, value in series[:-1])
            line, last = series[-1]
            if before > 0 and last >= JUMP_RATIO * before:
                return Trend(_JUMPED, line, f"grew {last / before:.0f} times")
    return None


def _named(lines: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
    """Write the column's name before each value of a table with commas; other text as it is."""
    header = next((text for _, text in lines if text.strip()), "")
    names = [name.strip().strip('"') for name in header.split(",")]
    if len(names) < 2 or not all(_COLUMN.fullmatch(name) for name in names):
        return lines
    rows = ((number, text.split(",")) for number, text in lines)
    return [
        (number, " ".join(f"{n}: {v.strip()} |" for n, v in zip(names, row, strict=True)))
        for number, row in rows
        if len(row) == len(names)
    ]


def _series(lines: Sequence[tuple[int, str]], pattern: re.Pattern[str]) -> list[tuple[int, float]]:
    found = ((number, pattern.search(text)) for number, text in lines)
    return [(number, float(value[1])) for number, value in found if value is not None]


def _slowed(series: Sequence[tuple[int, float]], slower_is_higher: bool) -> int | None:
    """First line of a slowdown that lasts to the end, or None."""
    if len(series) < _FEWEST_STEPS:
        return None
    early = [value for _, value in series[: max(_FEWEST_STEPS // 2 + 1, len(series) // 2)]]
    usual = median(early)
    noise = median(abs(value - usual) for value in early)
    margin = max(_SLOWER_RATIO * usual, _NOISE_DEVIATIONS * noise)
    slow = [(value - usual if slower_is_higher else usual - value) > margin for _, value in series]
    lasting = next((n for n, is_slow in enumerate(reversed(slow)) if not is_slow), len(slow))
    return series[-lasting][0] if lasting >= _LASTING_STEPS else None
