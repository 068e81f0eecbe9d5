"""What people write for a simulation: streams of faults, durations, and policies to compare.

Pure; `everstep.spec.load_simulation` reads the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from everstep.core.groups import Layout
from everstep.core.placement import backup_placement, no_backup
from everstep.core.simulation.chance import Shape, Spread
from everstep.core.simulation.faults import Cause, Fault, Shows, Way
from everstep.core.simulation.setting import Choices, Durations, Method, Setting
from everstep.core.vocabulary import Check, Symptom
from everstep.spec.job import JobSpec
from everstep.spec.policies import SpecPart, Standby
from everstep.spec.problems import relation_error

_Share = Annotated[float, Field(ge=0, le=1)]
_Test = Literal["gpu", "machine", "links", "bitwise", "replay"]
_Check = Literal["gpu", "machine", "links", "bitwise"]


class Seconds(SpecPart):
    """A time: a number, or one of the distributions below."""

    fixed: NonNegativeFloat | None = Field(default=None, description="Always this.")
    uniform: Annotated[tuple[float, float], Field(strict=False)] | None = Field(
        default=None, description="Least and most."
    )
    exponential: PositiveFloat | None = Field(default=None, description="The mean.")
    at_most: PositiveFloat | None = Field(default=None, description="Where larger ones are cut.")
    any_of: Annotated[tuple[NonNegativeFloat, ...], Field(strict=False)] | None = Field(
        default=None, min_length=1, description="Samples, each as likely as the others."
    )

    @model_validator(mode="before")
    @classmethod
    def _a_number(cls, given: Any) -> Any:
        return {"fixed": given} if isinstance(given, int | float) else given

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        shapes = [self.fixed, self.uniform, self.exponential, self.any_of]
        if sum(shape is not None for shape in shapes) != 1:
            fix = "Give a number, or one of uniform, exponential, any_of"
            raise relation_error("", "is not one distribution", fix)
        if (self.exponential is None) != (self.at_most is None):
            raise relation_error("at_most", "goes with exponential", "Give both, or neither")
        if self.uniform is not None and not 0 <= self.uniform[0] <= self.uniform[1]:
            fix = "Give two numbers, the smaller one first"
            raise relation_error("uniform", f"{list(self.uniform)} is no range", fix)
        return self

    def spread(self) -> Spread:
        """As the simulation takes it."""
        if self.fixed is not None:
            return Spread.fixed(self.fixed)
        if self.uniform is not None:
            return Spread(Shape.UNIFORM, self.uniform)
        if self.exponential is not None and self.at_most is not None:
            return Spread(Shape.EXPONENTIAL, (self.exponential, self.at_most))
        return Spread(Shape.ANY_OF, self.any_of or ())


class WaySpec(SpecPart):
    """One way in which a job fails."""

    symptom: str = Field(description="Row of the paper's Table 1.")
    weight: PositiveFloat = Field(description="How often, relative to the others.")
    cause: Literal["machine", "code", "passing", "wish"] = Field(
        description="What has to change before it stops coming back."
    )
    shows: Literal[
        "sensed", "lost", "words", "killed", "out_of_memory", "nan", "hang", "slow", "wish"
    ] = Field(description="How it is seen.")
    detection: str = Field(description="Which of the times under `detect` seeing it takes.")
    words: str = Field(default="", description="What the rank that ends says last.")
    machines: PositiveInt = Field(default=1, description="Neighbours that fail together.")
    found: dict[_Test, _Share] = Field(
        default_factory=dict[_Test, _Share],
        description="Probability with which a test names the machine, by test.",
    )
    by_group: _Share = Field(
        default=0.0, description="Share in which only a parallel group stands out."
    )
    returns: Seconds = Field(
        default=Seconds(fixed=60.0), description="Training time until it shows again."
    )

    @model_validator(mode="after")
    def _of_one_piece(self) -> Self:
        _known_symptom("symptom", self.symptom)
        _fits(self.cause, self.shows, self.words)
        return self

    def way(self) -> Way:
        """As the simulation takes it."""
        return Way(
            symptom=Symptom(self.symptom),
            weight=self.weight,
            cause=Cause(self.cause),
            shows=Shows(self.shows),
            detection=self.detection,
            words=self.words,
            machines=self.machines,
            found=cast("Mapping[str, float]", self.found),
            by_group=self.by_group,
            returns=self.returns.spread(),
        )


def _known_symptom(field: str, given: str) -> None:
    if given not in {symptom.value for symptom in Symptom}:
        known = ", ".join(symptom.value for symptom in Symptom)
        raise relation_error(field, f"{given!r} is none", f"Known are: {known}")


def _fits(cause: str, shows: str, words: str) -> None:
    if shows == "words" and not words:
        raise relation_error("words", "is missing", "Give what the rank says last")
    if (cause == "wish") != (shows == "wish"):
        fix = "Give both as wish, or neither"
        raise relation_error("cause", f"{cause!r} does not go with shows {shows!r}", fix)


class StreamSpec(SpecPart):
    """Which faults come, and how often."""

    every_h: PositiveFloat = Field(description="Mean hours between two faults of the whole job.")
    per_machines: PositiveInt = Field(
        description="Machines of the job that this holds for; others are hit in proportion."
    )
    ways: Annotated[tuple[WaySpec, ...], Field(strict=False)] = Field(
        min_length=1, description="What may happen."
    )

    def every_s(self, machines: int) -> float:
        """Mean time between two faults of a job of so many machines."""
        return self.every_h * 3600 * self.per_machines / machines


class RecordedFault(SpecPart):
    """One line of a recorded stream."""

    at_s: NonNegativeFloat = Field(description="When, in seconds since the job's begin.")
    symptom: str = Field(description="Row of the paper's Table 1.")
    cause: Literal["machine", "code", "passing", "wish"] = Field(
        description="What has to change before it stops coming back."
    )
    shows: Literal[
        "sensed", "lost", "words", "killed", "out_of_memory", "nan", "hang", "slow", "wish"
    ] = Field(description="How it is seen.")
    detection: str = Field(description="Which of the times under `detect` seeing it takes.")
    slots: Annotated[tuple[NonNegativeInt, ...], Field(strict=False)] = Field(
        min_length=1, description="Where it shows, or where its machines stand."
    )
    words: str = Field(default="", description="What the rank that ends says last.")
    found_by: Annotated[tuple[_Test, ...], Field(strict=False)] = Field(
        default=(), description="Tests that name its machine."
    )
    by_group: bool = Field(default=False, description="Whether only a group stands out.")
    returns_s: NonNegativeFloat = Field(
        default=60.0, description="Training time until it shows again."
    )

    @model_validator(mode="after")
    def _of_one_piece(self) -> Self:
        _known_symptom("symptom", self.symptom)
        _fits(self.cause, self.shows, self.words)
        return self

    def fault(self, number: int) -> Fault:
        """As the simulation takes it."""
        return Fault(
            number=number,
            at_s=self.at_s,
            symptom=Symptom(self.symptom),
            cause=Cause(self.cause),
            shows=Shows(self.shows),
            detection=self.detection,
            slots=tuple(sorted({*self.slots})),
            words=self.words,
            found_by=tuple(sorted(self.found_by)),
            by_group=self.by_group,
            returns_s=self.returns_s,
        )


class DurationsSpec(SpecPart):
    """How long things take, in seconds."""

    detect: dict[str, Seconds] = Field(description="From a fault to its alert.")
    detect_by_timeout: dict[str, Seconds] = Field(
        description="The same where nobody inspects machines."
    )
    step: PositiveFloat = Field(description="One step of training.")
    stop: Seconds = Field(description="From an alert to all ranks stopped and judged.")
    look: Seconds = Field(description="Asking all ranks where they stand, once.")
    check: dict[_Check, Seconds] = Field(description="One test of all machines; links: a meeting.")
    replay_round: Seconds = Field(description="One round of replay on all groups.")
    restore: Seconds = Field(description="Fetching shards from other machines.")
    restore_from_storage: Seconds = Field(description="The same from storage.")
    start: Seconds = Field(description="From the order to ranks that begin a step.")
    join: Seconds = Field(description="Until another machine waits for a slot.")
    person: Seconds = Field(description="Until a person has mended what nobody found.")
    requeue: Seconds = Field(description="A restart of the whole job through the queue.")
    reschedule: Seconds = Field(description="A restart with evicted machines scheduled anew.")
    stress: dict[str, Seconds] = Field(description="A stress test of suspects, by symptom.")
    stress_default: Seconds = Field(description="One that finds nothing.")

    @model_validator(mode="after")
    def _checks_and_symptoms(self) -> Self:
        for check in Check:
            if check.value not in self.check:
                raise relation_error("check", f"{check.value} is missing", "Give its seconds")
        for symptom in self.stress:
            _known_symptom(f"stress.{symptom}", symptom)
        return self

    def durations(self) -> Durations:
        """As the simulation takes it."""

        def spreads(given: Mapping[str, Seconds]) -> dict[str, Spread]:
            return {name: seconds.spread() for name, seconds in given.items()}

        return Durations(
            detect=spreads(self.detect),
            detect_by_timeout=spreads(self.detect_by_timeout),
            step_s=self.step,
            stop=self.stop.spread(),
            look=self.look.spread(),
            check={Check(name): seconds.spread() for name, seconds in self.check.items()},
            replay_round=self.replay_round.spread(),
            restore=self.restore.spread(),
            restore_from_storage=self.restore_from_storage.spread(),
            start=self.start.spread(),
            join=self.join.spread(),
            person=self.person.spread(),
            requeue=self.requeue.spread(),
            reschedule=self.reschedule.spread(),
            stress=spreads(self.stress),
            stress_default=self.stress_default.spread(),
        )


class PolicySpec(SpecPart):
    """What a policy does otherwise than the job's spec says."""

    name: str = Field(min_length=1, description="What tables call it.")
    method: Literal["ladder", "requeue", "stress_test"] = Field(
        default="ladder", description="Who decides what is done about a fault."
    )
    group: bool = Field(
        default=True,
        description="Whether a hang's whole group goes where no machine stands out, or one of it.",
    )
    bitwise: bool = Field(default=True, description="Whether NaN leads to the bitwise test.")
    retry_first: bool = Field(
        default=False, description="Whether each incident begins with a reattempt."
    )
    evict_suspects: bool | None = Field(
        default=None,
        description="Whether suspects go untested (ladder.evict_suspects); as the job's spec says"
        " when left out.",
    )
    checkpoint_every_steps: PositiveInt = Field(
        default=1, description="Steps from one state in memory to the next."
    )
    standbys: NonNegativeInt | None = Field(
        default=None, description="Machines kept warm; as the job's spec says when left out."
    )

    def choices(self) -> Choices:
        """As the simulation takes it."""
        return Choices(
            name=self.name,
            method=Method(self.method),
            group=self.group,
            bitwise=self.bitwise,
            retry_first=self.retry_first,
            evict_suspects=self.evict_suspects,
            checkpoint_every_steps=self.checkpoint_every_steps,
            standbys=self.standbys,
        )


def setting(
    spec: JobSpec, durations: Durations, choices: Choices, seed: int, days: float
) -> Setting:
    """A simulated run of a job.

    Args:
        spec: The job.
        durations: How long things take.
        choices: What the policy changes.
        seed: What all chance follows from.
        days: How long it runs.
    """
    spec = spec_with(spec, choices)
    layout = one_rank_a_machine(spec.layout())
    backup = backup_placement(layout)
    if not spec.checkpoint.backup:
        backup = no_backup(layout, "the spec says checkpoint.backup: false")
    storage = spec.checkpoint.storage
    every_s: float | None = None
    if storage is not None:
        of_steps = None if storage.every_steps is None else storage.every_steps * durations.step_s
        every_s = min(every for every in (storage.every_s, of_steps) if every is not None)
    return Setting(
        layout=layout,
        backup=backup,
        policy=spec.ladder_policy(),
        unavailable=spec.unavailable_rungs(),
        standbys=spec.standby_count(),
        window_s=spec.safety.window_s,
        evidence_window_s=spec.ladder.evidence_window_s,
        probation_steps=spec.ladder.probation_steps,
        probation_s=spec.probation_s(),
        first_step_timeout_s=spec.ladder.first_step_timeout_s,
        stacks_apart_s=spec.detection.stacks_apart_s,
        storage_every_s=every_s,
        durations=durations,
        choices=choices,
        seed=seed,
        days=days,
    )


def spec_with(spec: JobSpec, choices: Choices) -> JobSpec:
    """The job as a policy has it, in what its spec can say."""
    if choices.standbys is not None:
        count = Standby(count=choices.standbys)
        spec = spec.model_copy(update={"standby": count})
    if choices.evict_suspects is not None:
        changed = spec.ladder.model_copy(update={"evict_suspects": choices.evict_suspects})
        spec = spec.model_copy(update={"ladder": changed})
    return spec


def one_rank_a_machine(layout: Layout) -> Layout:
    """The layout with the ranks of a machine as one, where they are one tensor parallel group.

    Whatever is decided of whole machines is decided alike: no other group tells them apart.
    """
    if layout.tp != layout.gpus_per_machine or layout.wide_kinds[:1] != ("tp",):
        return layout
    return replace(layout, tp=1, gpus_per_machine=1)


def spec_for_workflows(spec: JobSpec) -> JobSpec:
    """The job as the real workflows are given it: that layout, and standbys left alone.

    A simulated machine joins when it has passed its tests, and one that is lost for good has
    another one on its way by itself.
    """
    alone = {"self_check": False, "check_every_s": 0.0, "refill": False}
    spec = spec.model_copy(update={"standby": spec.standby.model_copy(update=alone)})
    layout = one_rank_a_machine(spec.layout())
    if layout.gpus_per_machine == spec.gpus_per_machine:
        return spec
    parallelism = spec.parallelism.model_copy(update={"tp": 1})
    return spec.model_copy(update={"gpus_per_machine": 1, "parallelism": parallelism})
