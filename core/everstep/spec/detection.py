"""What of a job is taken for a fault, and how soon: the part `detection` of a spec."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from everstep.core.senses.step_lines import GROUPS
from everstep.core.slow.ballot import VotePolicy
from everstep.spec.policies import SpecPart
from everstep.spec.problems import did_you_mean, relation_error, shown


class Detection(SpecPart):
    """How soon silence counts as a loss, and what in the ranks' reports counts as a fault."""

    heartbeat_interval_s: PositiveFloat = Field(
        default=0.5, description="Seconds between two heartbeats of an agent."
    )
    agent_lost_after_s: PositiveFloat = Field(
        default=3.0, description="Seconds without a heartbeat after which an agent counts as lost."
    )
    reconnect_grace_s: NonNegativeFloat = Field(
        default=0.3,
        description="Seconds that an agent has to come back when its connection closed.",
    )
    silent_after_s: PositiveFloat = Field(
        default=30.0,
        description="Seconds after which the ranks of a script that reports no steps run.",
    )
    hang_after_step_times: Annotated[float, Field(gt=1)] = Field(
        default=3.0,
        description="Silence that is a hang, in times of the p99 of the last 256 step times.",
    )
    hang_after_at_least_s: PositiveFloat = Field(
        default=10.0,
        description="Seconds of silence that are no hang yet, whatever steps take.",
    )
    phase_timeout_s: PositiveFloat = Field(
        default=1800.0,
        description="Seconds that an evaluation or a checkpoint may take until three are known.",
    )
    stacks_apart_s: PositiveFloat = Field(
        default=2.0,
        description="Seconds between two looks at where hanging ranks stand.",
    )
    jump_ratio: Annotated[float, Field(gt=1)] = Field(
        default=5.0, description="Times the usual loss or gradient norm that are noted as a jump."
    )
    slowdown_ratio: PositiveFloat = Field(
        default=0.1, description="Share by which steps must be slower to be noted as a decline."
    )
    slow_round_s: PositiveFloat = Field(
        default=10.0, description="Seconds of a round of votes on which machine slows the job."
    )
    slow_rounds: NonNegativeInt = Field(
        default=5, description="Newest rounds that count; 0: nobody votes."
    )
    slow_flags: PositiveInt = Field(
        default=4, description="In how many of them a machine has to stand out to be evicted."
    )
    slow_ratio: PositiveFloat = Field(
        default=0.04,
        description="Share by which a rank's steps have to cost it more to stand out.",
    )
    step_pattern: str | None = Field(
        default=None,
        description=(
            "Regular expression for lines of ranks that do not use the library, with the group"
            " `step` and maybe `loss`, `grad_norm`, `evaluation`, `checkpoint`."
        ),
    )

    @field_validator("step_pattern")
    @classmethod
    def _finds_steps(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groupindex
        except re.error as error:
            fix = "Write it in the syntax of Python's re"
            raise relation_error("", f"{shown(pattern)}: {error}", fix) from error
        strange = next((name for name in groups if name not in GROUPS), None)
        if strange is not None:
            raise relation_error(
                "", f"{shown(strange)} is no group of a step", did_you_mean(strange, GROUPS)
            )
        if "step" not in groups:
            fix = r"Name the step's number, such as step +(?P<step>\d+)"
            raise relation_error("", f"{shown(pattern)} has no group step", fix)
        return pattern

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.heartbeat_interval_s * 2 < self.agent_lost_after_s:
            raise relation_error(
                "heartbeat_interval_s",
                f"twice {self.heartbeat_interval_s} is not below agent_lost_after_s"
                f" {self.agent_lost_after_s}, so one late heartbeat would cost a machine",
                "Lower heartbeat_interval_s or raise agent_lost_after_s",
            )
        if not self.reconnect_grace_s < self.agent_lost_after_s:
            raise relation_error(
                "reconnect_grace_s",
                f"{self.reconnect_grace_s} is not below agent_lost_after_s"
                f" {self.agent_lost_after_s}",
                "Lower reconnect_grace_s or raise agent_lost_after_s",
            )
        if self.slow_rounds and not self.slow_rounds / 2 < self.slow_flags <= self.slow_rounds:
            raise relation_error(
                "slow_flags",
                f"{self.slow_flags} is no majority of slow_rounds {self.slow_rounds}",
                f"Give {self.slow_rounds // 2 + 1} to {self.slow_rounds}",
            )
        return self

    def votes(self) -> VotePolicy | None:
        """When votes name a machine, or None when nobody votes."""
        if not self.slow_rounds:
            return None
        rounds = (self.slow_rounds, self.slow_flags)
        return VotePolicy(self.slow_round_s, *rounds, self.slow_ratio)
