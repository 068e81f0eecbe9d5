"""What `everstep doctor` says of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Whether a thing is there."""

    OK = "ok"
    MISSING = "missing"
    UNCLEAR = "could not tell"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a doctor.

    Attributes:
        item: What was looked at.
        state: Whether it is as it must be.
        detail: What was seen.
        fix: What to do about it; empty where it is ok.
    """

    item: str
    state: State
    detail: str
    fix: str = ""


def ok(item: str, detail: str) -> Finding:
    """It is as it must be."""
    return Finding(item, State.OK, detail)


def missing(item: str, detail: str, fix: str) -> Finding:
    """It is not."""
    return Finding(item, State.MISSING, detail, fix)


def unclear(item: str, detail: str, fix: str) -> Finding:
    """Nobody could say."""
    return Finding(item, State.UNCLEAR, detail, fix)
