"""Numbers in dumps, which different versions of the tools write as numbers or as texts."""

from __future__ import annotations


def whole_number(value: object) -> int | None:
    """The value as a whole number, or None where it is none."""
    if not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None
