"""The parts of a job spec that say how an incident climbs, and what holds it back.

Each field carries its line of documentation as its description.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from everstep.core.replay import FOUND_RATIO, SHOWS_RATIO
from everstep.core.vocabulary import Mode, Rung
from everstep.spec.policies import SpecPart

PROBATION_S = 1800.0
SHORT_PROBATION_S = 10.0
FEW_MACHINES = 16


class Ladder(SpecPart):
    """How an incident climbs, and when it is over."""

    check_timeout_s: PositiveFloat = Field(
        default=300.0, description="Seconds that each test between two attempts may take."
    )
    evidence_window_s: NonNegativeFloat = Field(
        default=0.2, description="Seconds of collecting evidence before a rung is chosen."
    )
    probation_steps: PositiveInt = Field(
        default=5,
        description="Healthy steps past the failed one that close an incident, with probation_s.",
    )
    probation_s: NonNegativeFloat | None = Field(
        default=None,
        description="Seconds of healthy training that close an incident, with the steps. By default"
        f" {PROBATION_S:g}, in which most faults that a restart does not mend come back;"
        f" {SHORT_PROBATION_S:g} for a job of at most {FEW_MACHINES} machines, which is a trial.",
    )
    first_step_timeout_s: PositiveFloat = Field(
        default=600.0,
        description="Seconds from the start of the ranks to their first step at most.",
    )
    max_restarts_without_progress: PositiveInt = Field(
        default=3,
        description="Restarts in a row that may bring no new step before a person is asked.",
    )
    evict_suspects: bool = Field(
        default=False,
        description="Whether the machine of a rank that complains of its GPU or disk is replaced at"
        " once, and no test stops the job for it; the paper tests first.",
    )


class Replay(SpecPart):
    """How the job is run, made small, on groups of machines, to find the faulty one."""

    steps: NonNegativeInt = Field(
        default=0,
        description="Steps of one run; 0: the script cannot be replayed: no such rung.",
    )
    layers: NonNegativeInt = Field(
        default=0, description="Layers that a run builds; 0: as many as the script by itself."
    )
    shows_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        default=SHOWS_RATIO,
        description="Share of runs in which a fault shows at least, on the machine that has it.",
    )
    found_ratio: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=FOUND_RATIO,
        description="Probability with which such a fault must be found; runs are repeated for it.",
    )
    timeout_s: PositiveFloat = Field(
        default=1800.0, description="Seconds that all runs of one group may take together."
    )


_Mode = Literal["observe", "approve", "automatic"]
_HOW = "automatic; approve: a person is asked; observe: it is noted, and the next rung is climbed."


class Modes(SpecPart):
    """How each rung of the ladder is performed."""

    evict: _Mode = Field(default="automatic", description=f"Taking machines out: {_HOW}")
    checks: _Mode = Field(default="automatic", description="Testing stopped machines: likewise.")
    reattempt: _Mode = Field(default="automatic", description="Trying again: likewise.")
    rollback: _Mode = Field(default="automatic", description="Going back to older code: likewise.")
    replay: _Mode = Field(default="automatic", description="Running small groups: likewise.")

    @model_validator(mode="before")
    @classmethod
    def _one_for_all(cls, given: Any) -> Any:
        if isinstance(given, str):
            return dict.fromkeys(cls.model_fields, given)
        return given

    def by_rung(self) -> dict[Rung, Mode]:
        """The mode of each rung that has one."""
        chosen: dict[str, str] = self.model_dump()
        return {Rung(name): Mode(mode) for name, mode in chosen.items()}


_Event = Literal["opened", "needs_approval", "closed", "paged"]


class Safety(SpecPart):
    """How much Everstep may do without asking, and whom it calls."""

    max_evicted_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5,
        description="Share of the job's machines that may be evicted within the window.",
    )
    window_s: PositiveFloat = Field(
        default=86_400.0, description="Length in seconds of the sliding window of evictions."
    )
    modes: Modes = Field(
        default=Modes(), description="How rungs are performed; one word stands for all of them."
    )
    webhook: str = Field(
        default="",
        pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        description=(
            "Environment variable of the controller that holds the address to which notices of"
            " incidents are posted; empty: they are only shown."
        ),
    )
    webhook_format: Literal["json", "slack"] = Field(
        default="json",
        description="json: fields for a program; slack: a message for a channel, with markup.",
    )
    webhook_events: tuple[_Event, ...] = Field(
        default=("opened", "needs_approval", "closed", "paged"),
        strict=False,
        min_length=1,
        examples=["[needs_approval, paged]"],
        description="Which notices are posted; one who is woken by them wants the last and second.",
    )
