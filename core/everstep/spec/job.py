"""A training job as a person describes it. Pure; `everstep.spec.load` reads and checks the file."""

from __future__ import annotations

import functools
import math
import re
from typing import Annotated, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from everstep.core import names
from everstep.core.groups import Layout
from everstep.core.kubernetes_names import TOPOLOGY_RACK, is_label_key
from everstep.core.ladder import Policy
from everstep.core.placement import BackupPlan, backup_placement, no_backup
from everstep.core.replay import scheme_for
from everstep.core.standby import NOTHING_SEEN, Seen, standby_count
from everstep.core.vocabulary import Rung
from everstep.spec.detection import Detection
from everstep.spec.ladder import (
    FEW_MACHINES,
    PROBATION_S,
    SHORT_PROBATION_S,
    Ladder,
    Replay,
    Safety,
)
from everstep.spec.pods import Pods
from everstep.spec.policies import (
    PAPER_FAILURE_RATE_PER_DAY,
    PAPER_QUANTILE,
    Checkpoint,
    CodeSource,
    Parallelism,
    SpecPart,
    Standby,
)
from everstep.spec.problems import relation_error, shown

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The list is converted to a tuple; what it contains is still taken strictly.
_Texts = Annotated[tuple[str, ...], Field(strict=False)]


class JobSpec(SpecPart):
    """One training job."""

    name: str = Field(
        examples=["my-job"], description="Name of the job: lower-case letters, digits and hyphens."
    )
    command: _Texts = Field(
        min_length=1,
        examples=["[python, train.py]"],
        description="Program and arguments that each rank runs, in the code folder.",
    )
    code: CodeSource = Field(examples=["{directory: .}"], description="Where the code comes from.")
    machines: PositiveInt = Field(examples=[4], description="Machines that train at the same time.")
    gpus_per_machine: PositiveInt = Field(examples=[8], description="Ranks on each machine.")
    parallelism: Parallelism = Field(
        examples=["{tp: 8, pp: 2, dp: 2}"],
        description="Sizes and order of the parallel dimensions.",
    )
    standby: Standby = Field(
        default_factory=lambda: Standby.model_validate({}),
        description="Machines kept warm to take over: a count, or a failure rate and a quantile.",
    )
    topology_label: str | None = Field(
        default=None,
        examples=["topology.kubernetes.io/rack"],
        description=(
            "Label of cluster nodes by which slots are ordered, so that neighbours share a rack."
        ),
    )
    pods: Pods = Field(default=Pods(), description="What machines are in a Kubernetes cluster.")
    environment: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Environment variables of the ranks, beside those that Everstep sets.",
    )
    prewarm: _Texts = Field(
        default=(), description="Modules to import ahead of a start, beside torch."
    )
    checkpoint: Checkpoint = Field(
        default=Checkpoint(), description="State that ranks save in memory."
    )
    detection: Detection = Field(
        default=Detection(), description="How soon silence or a figure counts as a fault."
    )
    ladder: Ladder = Field(
        default=Ladder(), description="How an incident climbs, and when it is over."
    )
    replay: Replay = Field(
        default=Replay(), description="The job made small, to find a faulty machine."
    )
    safety: Safety = Field(
        default=Safety(), description="How much may be done without asking, and who is called."
    )

    @field_validator("name")
    @classmethod
    def _dns_label(cls, name: str) -> str:
        if not _DNS_LABEL.fullmatch(name):
            raise relation_error(
                "",
                f"{shown(name)} is not a DNS label",
                "Use 1 to 63 lower-case letters, digits and hyphens, no hyphen at either end",
            )
        return name

    @field_validator("command")
    @classmethod
    def _a_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0].strip() or any("\0" in part for part in command):
            raise relation_error(
                "", f"{shown(list(command))} cannot be run", "Begin with the program to run"
            )
        return command

    @field_validator("environment")
    @classmethod
    def _free_variables(cls, environment: dict[str, str]) -> dict[str, str]:
        for name in environment:
            if not _VARIABLE.fullmatch(name):
                fix = "Use letters, digits and underscores"
                raise relation_error("", f"{shown(name)} cannot name a variable", fix)
            if name in names.TORCHRUN_VARIABLES or name.startswith("EVERSTEP_"):
                raise relation_error("", f"{name} is set by Everstep for each rank", "Leave it out")
        return environment

    @field_validator("topology_label")
    @classmethod
    def _label_key(cls, label: str | None) -> str | None:
        if label is not None and not is_label_key(label):
            fix = f"Write it as `kubectl get nodes --show-labels` does: {TOPOLOGY_RACK}"
            raise relation_error("", f"{shown(label)} cannot name a label", fix)
        return label

    @field_validator("prewarm")
    @classmethod
    def _module_names(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        for module in modules:
            if not all(part.isidentifier() for part in module.split(".")):
                fix = "Write it as in an import statement: package.module"
                raise relation_error("", f"{shown(module)} is not the name of a module", fix)
        return modules

    @model_validator(mode="after")
    def _sizes_multiply_up(self) -> Self:
        wide = {kind: size for kind, size in self.parallelism.sizes().items() if size > 1}
        ranks = math.prod(wide.values())
        places = self.machines * self.gpus_per_machine
        if ranks != places:
            product = " x ".join(f"{kind} {size}" for kind, size in wide.items()) or "every size 1"
            raise relation_error(
                "parallelism",
                f"{product} makes {ranks} ranks, but machines {self.machines} x gpus_per_machine"
                f" {self.gpus_per_machine} makes {places}",
                self._size_fix(ranks, places),
            )
        return self

    def _size_fix(self, ranks: int, places: int) -> str:
        fixes: list[str] = []
        without_dp = ranks // self.parallelism.dp
        if places % without_dp == 0:
            fixes.append(f"dp to {places // without_dp}")
        if ranks % self.gpus_per_machine == 0:
            fixes.append(f"machines to {ranks // self.gpus_per_machine}")
        if fixes:
            return f"Set {', or '.join(fixes)}"
        return "Change sizes until both products are equal"

    def layout(self) -> Layout:
        """Where each rank stands."""
        sizes = tuple(self.parallelism.sizes().items())
        return _layout(self.gpus_per_machine, sizes, self.parallelism.dimensions())

    def standby_count(self, seen: Seen = NOTHING_SEEN) -> int:
        """Number of machines to keep warm.

        Args:
            seen: What the job has seen of failures itself.
        """
        if self.standby.count is not None:
            return self.standby.count
        rate, quantile = self.standby.rate(seen), self.standby.quantile
        return standby_count(
            self.machines,
            PAPER_FAILURE_RATE_PER_DAY if rate is None else rate,
            PAPER_QUANTILE if quantile is None else quantile,
        )

    def backup_plan(self) -> BackupPlan:
        """Who keeps whose copy; nobody when the spec switches backups off."""
        if not self.checkpoint.backup:
            return no_backup(self.layout(), "the spec says checkpoint.backup: false")
        return backup_placement(self.layout())

    def probation_s(self) -> float:
        """Seconds of healthy training that close an incident."""
        if self.ladder.probation_s is not None:
            return self.ladder.probation_s
        return SHORT_PROBATION_S if self.machines <= FEW_MACHINES else PROBATION_S

    def ladder_policy(self) -> Policy:
        """What the ladder may do without asking."""
        return Policy(
            machines=self.machines,
            max_evicted_ratio=self.safety.max_evicted_ratio,
            max_restarts_without_progress=self.ladder.max_restarts_without_progress,
            modes=self.safety.modes.by_rung(),
            evict_suspects=self.ladder.evict_suspects,
        )

    def unavailable_rungs(self) -> dict[Rung, str]:
        """Rungs that the job can never climb, each with why."""
        if self.replay.steps == 0:
            return {Rung.REPLAY: "replay.steps is 0"}
        if not scheme_for(self.layout()).divisible:
            return {Rung.REPLAY: "one copy of the model fills all machines"}
        return {}


@functools.lru_cache(maxsize=8)
def _layout(
    gpus_per_machine: int, sizes: tuple[tuple[str, int], ...], order: tuple[str, ...]
) -> Layout:
    """Once for all machines of a job: each order to one of them asks for it."""
    return Layout(gpus_per_machine, **dict(sizes), order=order)
