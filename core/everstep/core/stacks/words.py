"""Ranks in a sentence, and texts of others that can be put into one."""

from __future__ import annotations

from collections.abc import Iterable

_RUNS_SHOWN = 6


def ranks_text(ranks: Iterable[int]) -> str:
    """Such as "rank 3" or "ranks 0-3, 8"; cut off after a few runs."""
    numbers = sorted(ranks)
    noun = "rank" if len(numbers) == 1 else "ranks"
    return f"{noun} {runs_text(numbers)}"


def runs_text(numbers: Iterable[int]) -> str:
    """Such as "0-3, 8"; cut off after a few runs."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:_RUNS_SHOWN]]
    left = sum(b - a + 1 for a, b in runs[_RUNS_SHOWN:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def printable(value: object) -> str:
    """A text of others with nothing in it that cannot be written: JSON may hold half characters."""
    text = str(value)
    return text if text.isascii() else text.encode(errors="replace").decode()
