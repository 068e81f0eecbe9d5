"""The parts of a job spec: what runs, how it is cut up, and what is kept for it.

Each field carries its line of documentation as its description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from everstep.core.groups import KINDS
from everstep.core.standby import NOTHING_SEEN, Seen, learned_rate
from everstep.core.stored import StoragePolicy
from everstep.spec.problems import did_you_mean, relation_error, shown

PAPER_FAILURE_RATE_PER_DAY = 0.0012
"""What the standby counts of the paper's Table 5 follow from."""

PAPER_QUANTILE = 0.99

PRIOR_MACHINE_DAYS = 1000.0
"""What weighs as much as one failure at the paper's rate; a day of the paper's largest job."""


class SpecPart(BaseModel):
    """Base of everything people write: immutable, no unknown fields, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class CodeSource(SpecPart):
    """Where the code comes from."""

    directory: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of the code, relative to the spec file's folder.",
    )
    git: str | None = Field(default=None, min_length=1, description="Address of a git repository.")
    ref: str | None = Field(
        default=None, min_length=1, description="Branch, tag or commit of `git`."
    )
    previous: str | None = Field(
        default=None,
        min_length=1,
        description="Folder, or ref of `git`, of the version before: what a rollback goes to.",
    )
    prepare: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        examples=["[make, -C, kernels]"],
        description=(
            "Program and arguments that make a version ready: run on each machine, in a copy of the"
            " code of its own, before the version may run there."
        ),
    )
    prepare_timeout_s: PositiveFloat = Field(
        default=600.0, description="Seconds that this may take on one machine."
    )

    @field_validator("prepare")
    @classmethod
    def _a_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and (not command[0].strip() or any("\0" in part for part in command)):
            raise relation_error(
                "", f"{shown(list(command))} cannot be run", "Begin with the program to run"
            )
        return command

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.directory is None) == (self.git is None):
            given = "both directory and git are given" if self.git else "nothing is given"
            raise relation_error("", given, "Give {directory: PATH} or {git: URL, ref: REF}")
        if (self.git is None) != (self.ref is None):
            absent = "git" if self.git is None else "ref"
            raise relation_error(absent, "is missing", "git and ref go together")
        return self


class Parallelism(SpecPart):
    """How the ranks are cut into parallel groups."""

    tp: PositiveInt = Field(default=1, description="Tensor parallel size.")
    cp: PositiveInt = Field(default=1, description="Context parallel size.")
    ep: PositiveInt = Field(
        default=1, description="Expert parallel size, as a dimension of its own beside dp."
    )
    dp: PositiveInt = Field(default=1, description="Data parallel size.")
    pp: PositiveInt = Field(default=1, description="Pipeline parallel size.")
    order: str = Field(
        default="-".join(KINDS),
        description="Dimensions by how fast they vary with the rank, fastest first.",
    )

    @field_validator("order")
    @classmethod
    def _known_dimensions(cls, order: str) -> str:
        names = order.split("-")
        for name in names:
            if name not in KINDS:
                raise relation_error(
                    "",
                    f"{shown(name)} in {shown(order)} is not a dimension",
                    did_you_mean(name, KINDS),
                )
            if names.count(name) > 1:
                raise relation_error("", f"{shown(order)} names {name} twice", "Name it once")
        return order

    @model_validator(mode="after")
    def _nothing_left_out(self) -> Self:
        for kind, size in self.sizes().items():
            if size > 1 and kind not in self.dimensions():
                raise relation_error(
                    "order",
                    f"{shown(self.order)} leaves out {kind}, which is {size}",
                    f"Add it, such as {self.order}-{kind}",
                )
        return self

    def dimensions(self) -> tuple[str, ...]:
        """The dimensions that `order` names, fastest first."""
        return tuple(self.order.split("-"))

    def text(self) -> str:
        """One line for the ranks' environment: `tp=2,pp=2,dp=2;order=tp-pp-dp`."""
        sizes = self.sizes()
        named = ",".join(f"{kind}={sizes[kind]}" for kind in self.dimensions())
        return f"{named};order={self.order}"

    def sizes(self) -> dict[str, int]:
        """The size of every dimension."""
        return {"tp": self.tp, "cp": self.cp, "ep": self.ep, "dp": self.dp, "pp": self.pp}


class Standby(SpecPart):
    """How many machines are kept warm: a number, or what it follows from."""

    count: int | None = Field(default=None, ge=0, description="Number of standby machines.")
    failure_rate_per_day: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description=(
            "Probability that a machine fails within a day"
            f" ({PAPER_FAILURE_RATE_PER_DAY} unless count is given)."
        ),
    )
    quantile: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description=(
            f"Share of days on which the standbys suffice ({PAPER_QUANTILE} unless count is given)."
        ),
    )
    prior_machine_days: PositiveFloat | None = Field(
        default=None,
        description=(
            "Machine-days for which failure_rate_per_day counts beside the failures that the job"
            f" sees itself ({PRIOR_MACHINE_DAYS:g} unless count is given); null: those change"
            " nothing."
        ),
    )
    self_check: bool = Field(
        default=True, description="Whether a machine is tested before it counts as a standby."
    )
    check_every_s: NonNegativeFloat = Field(
        default=3600.0,
        description="Seconds between two tests of machines on standby; 0: they are left alone.",
    )
    refill: bool = Field(
        default=True,
        description="Whether the cluster is asked for a machine in place of each that is lost.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        # Filled in here and not by defaults, so that a spec survives being sent and read again.
        if not isinstance(given, Mapping) or "count" in given:
            return given  # pyright: ignore[reportUnknownVariableType] - validated next
        paper = {
            "failure_rate_per_day": PAPER_FAILURE_RATE_PER_DAY,
            "quantile": PAPER_QUANTILE,
            "prior_machine_days": PRIOR_MACHINE_DAYS,
        }
        return {**paper, **cast("Mapping[str, Any]", given)}

    @model_validator(mode="after")
    def _either_or(self) -> Self:
        rule = (self.failure_rate_per_day, self.quantile)
        if self.count is not None and rule != (None, None):
            raise relation_error(
                "count",
                f"{self.count} is given beside failure_rate_per_day or quantile",
                "Give {count: N} without them, or leave it out",
            )
        if self.count is not None and self.prior_machine_days is not None:
            raise relation_error(
                "count",
                f"{self.count} is given, so there is nothing that prior_machine_days could teach",
                "Give {count: N} without it, or leave it out",
            )
        if self.count is None and None in rule:
            raise relation_error(
                "",
                "neither a count nor a whole rule is given",
                "Give {count: N} or {failure_rate_per_day: P, quantile: Q}",
            )
        return self

    def rate(self, seen: Seen = NOTHING_SEEN) -> float | None:
        """The failure rate that the count follows from; None where the spec gives the count.

        Args:
            seen: What the job has seen of failures itself.
        """
        if self.failure_rate_per_day is None or self.prior_machine_days is None:
            return self.failure_rate_per_day
        return learned_rate(self.failure_rate_per_day, self.prior_machine_days, seen)


class Storage(SpecPart):
    """Checkpoints that outlive all machines, in torch.distributed.checkpoint's format."""

    path: str = Field(
        min_length=1,
        examples=["s3://bucket/checkpoints"],
        description=(
            "Folder, relative to the spec file's, or URL that fsspec knows; every machine must"
            " reach it."
        ),
    )
    every_steps: PositiveInt | None = Field(
        default=None, examples=[500], description="Save the steps that this divides."
    )
    every_s: PositiveFloat | None = Field(
        default=None,
        examples=[1800],
        description="Save a step when this many seconds have passed since the last save.",
    )
    keep: PositiveInt = Field(
        default=3, description="Complete checkpoints to keep; older ones are deleted."
    )
    slow_after_s: PositiveFloat = Field(
        default=300.0, description="Seconds after which a save that is not done raises an alert."
    )
    give_up_after_s: PositiveFloat = Field(
        default=3600.0, description="Seconds after which a save that is not done is ended."
    )

    @field_validator("path")
    @classmethod
    def _a_folder(cls, path: str) -> str:
        if "\0" in path or not path.strip():
            raise relation_error("", f"{shown(path)} is no folder", "Give a folder or a URL")
        return path

    @model_validator(mode="after")
    def _sometimes(self) -> Self:
        if self.every_steps is None and self.every_s is None:
            raise relation_error(
                "",
                "nothing says when to save",
                "Give every_steps: N, every_s: SECONDS, or both",
            )
        if not self.slow_after_s < self.give_up_after_s:
            raise relation_error(
                "slow_after_s",
                f"{self.slow_after_s} is not below give_up_after_s {self.give_up_after_s}, so"
                " nobody would be told before a save is ended",
                "Lower slow_after_s or raise give_up_after_s",
            )
        return self

    def policy(self) -> StoragePolicy:
        """What agents are told."""
        return StoragePolicy(
            url=self.path,
            every_steps=self.every_steps,
            every_s=self.every_s,
            keep=self.keep,
            slow_after_s=self.slow_after_s,
            give_up_after_s=self.give_up_after_s,
        )


class Checkpoint(SpecPart):
    """What happens with the state that ranks save in memory."""

    backup: bool = Field(
        default=True, description="Whether another machine keeps a copy of each shard."
    )
    backup_timeout_s: PositiveFloat = Field(
        default=10.0, description="Seconds after which a copy that has not arrived is given up."
    )
    when_all_copies_lost: Literal["restart", "hold"] = Field(
        default="restart",
        description=(
            "Start from the beginning, or hold for a person, when a shard is lost and storage has"
            " no checkpoint either."
        ),
    )
    replicated: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        examples=["[model, optimizer]"],
        description=(
            "Keys of the saved state (deeper ones with dots: train.model) whose tensors are equal"
            " on all ranks of a DP group. Each rank keeps and backs up only its share of them, and"
            " a restart fetches the others' shares from their machines."
        ),
    )
    storage: Storage | None = Field(
        default=None,
        examples=["{path: s3://bucket/checkpoints, every_s: 1800}"],
        description="Where steps are kept beside memory, and when; nowhere when it is left out.",
    )

    @field_validator("replicated")
    @classmethod
    def _keys(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not all(name.split(".")):
                fix = "Give a key of the saved state, such as model, or train.model inside train"
                raise relation_error("", f"{shown(name)} names nothing in a state", fix)
        return names
