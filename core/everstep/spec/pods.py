"""The part of a job spec that says what its machines are in a Kubernetes cluster."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, field_validator

from everstep.spec.policies import SpecPart
from everstep.spec.problems import relation_error, shown

_Texts = Annotated[tuple[str, ...], Field(strict=False)]
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")


class Toleration(SpecPart):
    """A taint of nodes that the job's pods do not mind."""

    key: str = Field(min_length=1, description="Key of the taint.")
    value: str | None = Field(default=None, description="Its value; not given: any.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Its effect; not given: any."
    )


class Pods(SpecPart):
    """What the job's machines are in a Kubernetes cluster."""

    image: str | None = Field(
        default=None,
        min_length=1,
        examples=["registry.example.com/team/train:1.4"],
        description="Image of training pods: the trainer's own, with `everstep[agent]` in it.",
    )
    python: str = Field(
        default="python", min_length=1, description="The image's interpreter, with torch."
    )
    kind: Literal["jobset", "statefulset"] = Field(
        default="jobset",
        description="What keeps the pods: a JobSet, or a StatefulSet where its CRD is missing.",
    )
    resources: dict[str, str] = Field(
        default_factory=dict[str, str],
        examples=["{memory: 900Gi, rdma/hca: '8'}"],
        description=(
            "Limits of a training pod, beside `nvidia.com/gpu`, which is `gpus_per_machine` unless"
            " it is given here; '0' leaves one out."
        ),
    )
    shared_memory: str | None = Field(
        default=None, description="Size of /dev/shm; not given: up to the pod's memory."
    )
    volume_claim: str = Field(
        default="everstep-runs",
        min_length=1,
        description="Volume (ReadWriteMany) for the folders of runs.",
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict[str, str], description="Labels of nodes that will do."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = Field(
        default=(), description="Taints of nodes that the pods do not mind."
    )
    runtime_class: str | None = Field(
        default=None, examples=["nvidia"], description="RuntimeClass that brings the GPUs."
    )
    service_account: str | None = Field(
        default=None, description="Of training pods; they get no token of it."
    )
    pull_secrets: _Texts = Field(default=(), description="Secrets by which the image is pulled.")
    user: NonNegativeInt | None = Field(
        default=None, description="User id of training pods; not given: the image's own."
    )
    capabilities: _Texts = Field(
        default=("SYS_PTRACE",),
        description="All capabilities that a training pod keeps; py-spy needs SYS_PTRACE.",
    )
    share_nodes: bool = Field(
        default=False,
        description="Whether pods of the job may share a node: for trying out, on one host.",
    )
    node_senses: bool = Field(
        default=True,
        description=(
            "Whether `everstep-node` watches kernel log and network of the nodes; else agents do,"
            " as far as their pods see."
        ),
    )
    pod_monitor: bool = Field(
        default=False, description="Whether to add a PodMonitor for the Prometheus operator."
    )

    @field_validator("resources")
    @classmethod
    def _quantities(cls, resources: dict[str, str]) -> dict[str, str]:
        for name, amount in resources.items():
            if not _QUANTITY.fullmatch(amount):
                fix = "Write a number with a unit of Kubernetes: 8, 500m, 64Gi"
                raise relation_error(name, f"{shown(amount)} is no quantity", fix)
        return resources

    @field_validator("shared_memory")
    @classmethod
    def _quantity(cls, amount: str | None) -> str | None:
        if amount is not None and not _QUANTITY.fullmatch(amount):
            fix = "Write a number with a unit of Kubernetes: 64Gi"
            raise relation_error("", f"{shown(amount)} is no quantity", fix)
        return amount
