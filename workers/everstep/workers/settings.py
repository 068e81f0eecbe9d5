"""Settings of the worker processes: the only reader of the environment besides Temporal's own.

Where the Temporal server is, is told by Temporal's standard environment configuration
(TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_PROFILE, ...).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from everstep.core.errors import InputError

PREFIX = "EVERSTEP_"


class ProcessSettings(BaseModel):
    """What every process of ours may be told.

    Each field is read from `EVERSTEP_<NAME IN CAPITALS>`.
    """

    model_config = ConfigDict(frozen=True)

    host: str = Field(default="127.0.0.1", description="Address that this process's ports bind.")
    evidence: str | None = Field(
        default=None,
        description=(
            "Where stack dumps are kept: a folder, or any URL that fsspec knows; not given: the"
            " run's folder."
        ),
    )
    cluster: Literal["local", "kubernetes"] = Field(
        default="local", description="What machines are: processes of this host, or pods."
    )
    namespace: str = Field(
        default="default", description="Kubernetes namespace of the job's pods.", min_length=1
    )
    metrics_port: int | None = Field(
        default=None,
        description="Port of Prometheus metrics, 0 for any that is free; not given: none.",
        ge=0,
        lt=65536,
    )
    health_port: int | None = Field(
        default=None,
        description="Port of /healthz and /readyz, 0 for any that is free; not given: none.",
        ge=0,
        lt=65536,
    )

    def environment(self) -> dict[str, str]:
        """These settings as environment variables, for a child process."""
        given = self.model_dump(exclude_none=True, exclude_unset=True)
        return {f"{PREFIX}{name.upper()}": str(value) for name, value in given.items()}


class ControllerSettings(ProcessSettings):
    """What a controller is told, which serves one run's job or those of a whole cluster."""

    run_directory: Path | None = Field(
        default=None, description="The run's folder, of a controller that serves one run."
    )
    runs_directory: Path | None = Field(
        default=None,
        description="Where the run folders of all jobs lie, each under its job's name.",
    )
    secrets_directory: Path | None = Field(
        default=None,
        description="Files that stand for the variables that specs name, such as a webhook's.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.run_directory is None) == (self.runs_directory is None):
            said = f"give it or {PREFIX}RUNS_DIRECTORY, and not both"
            raise PydanticCustomError("place", "{said}", {"said": said})
        return self

    def folder(self) -> Path:
        """Where the controller keeps what belongs to no single job."""
        folder = self.run_directory or self.runs_directory
        assert folder is not None  # noqa: S101 - the validator saw to it
        return folder

    def run_of(self, job: str) -> Path:
        """The run folder of a job."""
        return self.folder() if self.run_directory else self.folder() / job

    def evidence_url(self) -> str:
        """Where pictures of verdicts are kept."""
        return self.evidence or str(self.folder() / "evidence")


class NodeSettings(ProcessSettings):
    """What the process is told that watches a cluster's node for the jobs that run there."""

    machine: str = Field(min_length=1, description="Name of the node (`spec.nodeName`).")
    kernel_log_of_programs: bool = Field(
        default=False, description="Whether lines that programs write to the kernel log count."
    )


class WorkerSettings(ProcessSettings):
    """What an analyzer or an agent is told when it starts."""

    spec_file: Path = Field(description="The job's spec.")
    run_directory: Path = Field(description="Where logs, records and steps are written.")
    secret_file: Path = Field(description="File with the job's secret, readable by its owner only.")
    code_directory: Path = Field(description="Where the code version lies on this machine.")
    telemetry_host: str = Field(default="127.0.0.1", description="Where the analyzer listens.")
    telemetry_port: int = Field(description="Port of the analyzer.", gt=0, lt=65536)
    senses: bool | None = Field(
        default=None,
        description=(
            "Whether an agent watches its host, network and GPUs; not given: unless `host` is"
            " a loopback address, where several machines share what there is to see."
        ),
    )
    pod_name: str = Field(
        default="", description="Pod of an agent (`metadata.name`); empty outside of Kubernetes."
    )
    pod_uid: str = Field(
        default="", description="Its uid (`metadata.uid`); empty outside of Kubernetes."
    )
    ends_with_job: bool = Field(
        default=False,
        description="Whether an agent or analyzer ends when its job has, so that its pod does.",
    )
    node_senses: bool = Field(
        default=False,
        description="Whether the node's own process watches kernel log and network, not the agent.",
    )
    inject_faults: bool = Field(
        default=False,
        description="Whether ranks and checks look for faults that this run was asked to inject.",
    )
    kernel_log_of_programs: bool = Field(
        default=False, description="Whether lines that programs write to the kernel log count."
    )

    def secret(self) -> bytes:
        """The job's secret.

        Raises:
            InputError: The file cannot be read, or is empty.
        """
        try:
            secret = self.secret_file.read_bytes().strip()
        except OSError as error:
            raise InputError(str(self.secret_file), str(error), "Give the job a secret.") from error
        if not secret:
            raise InputError(str(self.secret_file), "it is empty", "Write a random secret to it.")
        return secret

    def evidence_url(self) -> str:
        """Where stack dumps are kept."""
        return self.evidence or str(self.run_directory / "evidence")

    def watches_machine(self) -> bool:
        """Whether the agent that is told this watches its host, network and GPUs."""
        if self.senses is not None:
            return self.senses
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"


Settings = TypeVar("Settings", bound=ProcessSettings)


def from_environment(environ: Mapping[str, str] = os.environ) -> WorkerSettings:
    """Read the settings of an analyzer or an agent.

    Raises:
        InputError: A variable is missing or wrong; names it.
    """
    return read(WorkerSettings, environ)


def read(kind: type[Settings], environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings of a kind of process.

    Raises:
        InputError: A variable is missing or wrong; names it.
    """
    given = {
        name: environ[f"{PREFIX}{name.upper()}"]
        for name in kind.model_fields
        if f"{PREFIX}{name.upper()}" in environ
    }
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        variable = f"{PREFIX}{str((*first['loc'], 'run_directory')[0]).upper()}"
        said = first["msg"][:1].lower() + first["msg"][1:]
        raise InputError(variable, said, "Set it for this process.") from error


def kubeconfig() -> str | None:
    """The file that Kubernetes' own variable names; None inside of a cluster."""
    return os.environ.get("KUBECONFIG") or None


def secrets(directory: Path | None = None) -> Mapping[str, str]:
    """Variables that a spec names instead of holding what is in them, such as `safety.webhook`.

    Args:
        directory: Files that count as variables of their names, as a mounted Secret has them, and
            win over the environment; read anew each time, since such files change.
    """
    return os.environ if directory is None else _FilesFirst(directory, os.environ)


def require_variable(field: str, name: str, variables: Mapping[str, str]) -> None:
    """See that a variable that a spec names is there.

    Args:
        field: Where the spec names it.
        name: The variable's.
        variables: All that there are.

    Raises:
        InputError: It is not there.
    """
    if name not in variables:
        fix = "Export it with what it should hold, as the controller has it."
        raise InputError(f"{field}: {name}", "there is no such variable here", fix)


class _FilesFirst(Mapping[str, str]):
    """The files of a folder as variables, then other variables."""

    def __init__(self, directory: Path, others: Mapping[str, str]) -> None:
        self._directory, self._others = directory, others

    def __getitem__(self, name: str) -> str:
        file = self._directory / name
        if name == file.name and file.is_file():
            return file.read_text(encoding="utf-8").strip()
        return self._others[name]

    def __iter__(self) -> Iterator[str]:
        files = {file.name for file in self._directory.glob("*") if file.is_file()}
        return iter(sorted(files | set(self._others)))

    def __len__(self) -> int:
        return sum(1 for _ in self)
