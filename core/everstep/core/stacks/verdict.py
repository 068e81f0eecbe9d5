"""What is concluded from stacks and recorders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everstep.core.stacks.domain import Domain

DOUBT = "Doubt: "
"""How a sentence begins that speaks against the verdict, or of what could not be told."""


class StackVerdict(StrEnum):
    """What to do about a hang, as far as stacks tell."""

    EVICT = "evict"
    UNOBSERVABLE = "unobservable"
    MOVING = "moving"


class NextStep(StrEnum):
    """What to do where nobody is to be evicted."""

    NONE = ""
    LOOK_AGAIN = "look_again"
    REPLAY = "replay"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Who holds the job up.

    Attributes:
        verdict: `evict` names machines; `moving` means that nobody is stuck in one place, so that
            code, data or slowness is the likelier cause; `unobservable` says nothing of anybody's
            health.
        suspect_ranks: Ascending; may be there without an eviction.
        domain: What the suspects share; None without an eviction.
        reasons: Sentences: the evidence that decided first, doubts last, which begin with "Doubt:".
        next_step: What to do next when nobody is evicted.
        by_group: Whether the evidence points at no rank by itself: suspects only stand apart from
            the others, and all but one of them may do so because of that one.
    """

    verdict: StackVerdict
    suspect_ranks: tuple[int, ...]
    domain: Domain | None
    reasons: tuple[str, ...]
    next_step: NextStep = NextStep.NONE
    by_group: bool = False

    @property
    def evict_machines(self) -> tuple[int, ...]:
        """Slots of the machines to evict, ascending."""
        return () if self.domain is None else self.domain.machines
