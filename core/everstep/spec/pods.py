"""The part of a job spec that says what its machines are in a Kubernetes cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, field_validator

from everstep.core import kubernetes_names as words
from everstep.spec.policies import SpecPart
from everstep.spec.problems import relation_error, shown


def _checked(test: Callable[[str], object], what: str, fix: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not test(text):
            raise relation_error("", f"{shown(text)} is no {what}", fix)
        return text

    return check


_label = _checked(words.is_label_key, "label", "Write it as nodes have it: example.com/name")
_object_name = _checked(
    words.is_object_name,
    "name of an object",
    "Use lower-case letters, digits, hyphens and dots, none of these two at an end",
)
_image = _checked(words.is_image, "image", "Write it as its registry does: registry/name:tag")
_capability = _checked(
    re.compile("[A-Z][A-Z_]*").fullmatch, "capability", "Write it without CAP_: SYS_PTRACE"
)
_Label = Annotated[str, AfterValidator(_label)]
_Name = Annotated[str, AfterValidator(_object_name)]
_Image = Annotated[str, AfterValidator(_image)]
_Names = Annotated[tuple[_Name, ...], Field(strict=False)]
_Capabilities = Annotated[
    tuple[Annotated[str, AfterValidator(_capability)], ...], Field(strict=False)
]
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")


class Toleration(SpecPart):
    """A taint of nodes that the job's pods do not mind."""

    key: _Label = Field(description="Key of the taint.")
    value: str | None = Field(default=None, description="Its value; not given: any.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Its effect; not given: any."
    )


class Pods(SpecPart):
    """What the job's machines are in a Kubernetes cluster."""

    image: _Image | None = Field(
        default=None,
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
    volume_claim: _Name = Field(
        default="everstep-runs",
        description="Volume (ReadWriteMany) for the folders of runs.",
    )
    node_selector: dict[_Label, str] = Field(
        default_factory=dict[str, str], description="Labels of nodes that will do."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = Field(
        default=(), description="Taints of nodes that the pods do not mind."
    )
    runtime_class: _Name | None = Field(
        default=None, examples=["nvidia"], description="RuntimeClass that brings the GPUs."
    )
    service_account: _Name | None = Field(
        default=None, description="Of training pods; they get no token of it."
    )
    pull_secrets: _Names = Field(default=(), description="Secrets by which the image is pulled.")
    user: NonNegativeInt | None = Field(
        default=None, description="User id of training pods; not given: the image's own."
    )
    capabilities: _Capabilities = Field(
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
