"""What the tests of a rung come to."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.vocabulary import ClimbOutcome


@dataclass(frozen=True, slots=True)
class Tested:
    """What a rung of tests has found.

    Attributes:
        outcome: FOUND, PASSED or COULD_NOT_TELL.
        machines: Machines that it names, by slot; empty unless FOUND.
        reason: One sentence.
    """

    outcome: ClimbOutcome
    machines: tuple[str, ...]
    reason: str
