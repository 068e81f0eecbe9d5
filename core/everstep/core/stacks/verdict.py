"""What is concluded from stacks and recorders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everstep.core.stacks.domain import Domain


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
    """

    verdict: StackVerdict
    suspect_ranks: tuple[int, ...]
    domain: Domain | None
    reasons: tuple[str, ...]
    next_step: NextStep = NextStep.NONE

    @property
    def evict_machines(self) -> tuple[int, ...]:
        """Slots of the machines to evict, ascending."""
        return () if self.domain is None else self.domain.machines
