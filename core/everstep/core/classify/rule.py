"""What a rule is. Rules themselves are data: one module a family, in `rules`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from everstep.core.classify.names import Action, Label, Symptom


class Standing(IntEnum):
    """What a line proves, in ascending order; a cause outranks everything that follows from it."""

    HARMLESS = 0
    CONTEXT = 1
    CONSEQUENCE = 2
    SIGN = 3
    CAUSE = 4
    PROOF = 5


@dataclass(frozen=True, slots=True)
class Reading:
    """What evidence says.

    Attributes:
        symptom: What was seen.
        label: Where the fault was.
        action: What to do first.
        confidence: 0 to 1; how often a careful reader would be right with this alone.
    """

    symptom: Symptom
    label: Label
    action: Action
    confidence: float


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that programs or kernels print, and what it means.

    Attributes:
        name: Unique; part of every reason.
        pattern: Regular expression, searched in the line in lower case.
        standing: What a matching line proves.
        reading: What it says when nothing in its surroundings says otherwise.
        meaning: One clause, for people.
        source: Where the meaning is written down.
        examples: Lines that must match; a test tries each.
    """

    name: str
    pattern: str
    standing: Standing
    reading: Reading
    meaning: str
    source: str
    examples: tuple[str, ...]


QUIET = Reading(Symptom.NONE, Label.UNKNOWN, Action.NONE, 0.8)
"""Of lines that ask for nothing."""
