"""Settings of the worker processes: the only reader of the environment besides Temporal's own.

Where the Temporal server is, is told by Temporal's standard environment configuration
(TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_PROFILE, ...).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everstep.core.errors import InputError

PREFIX = "EVERSTEP_"


class WorkerSettings(BaseModel):
    """What a controller worker, an analyzer or an agent is told when it starts.

    Each field is read from `EVERSTEP_<NAME IN CAPITALS>`.
    """

    model_config = ConfigDict(frozen=True)

    spec_file: Path = Field(description="The job's spec.")
    run_directory: Path = Field(description="Where logs, records and steps are written.")
    secret_file: Path = Field(description="File with the job's secret, readable by its owner only.")
    code_directory: Path = Field(description="Where the code version lies on this machine.")
    host: str = Field(default="127.0.0.1", description="Address that this process's ports bind.")
    telemetry_host: str = Field(default="127.0.0.1", description="Where the analyzer listens.")
    telemetry_port: int = Field(description="Port of the analyzer.", gt=0, lt=65536)
    evidence: str | None = Field(
        default=None,
        description=(
            "Where stack dumps are kept: a folder, or any URL that fsspec knows; not given: the"
            " run's folder."
        ),
    )
    metrics_port: int | None = Field(
        default=None,
        description="Port of Prometheus metrics, 0 for any that is free; not given: none.",
        ge=0,
        lt=65536,
    )
    senses: bool | None = Field(
        default=None,
        description=(
            "Whether an agent watches its host, network and GPUs; not given: unless `host` is"
            " a loopback address, where several machines share what there is to see."
        ),
    )
    cluster: Literal["local", "kubernetes"] = Field(
        default="local", description="What machines are: processes of this host, or pods."
    )
    namespace: str = Field(
        default="default", description="Kubernetes namespace of the job's pods.", min_length=1
    )
    pod_name: str = Field(
        default="", description="Pod of an agent (`metadata.name`); empty outside of Kubernetes."
    )
    pod_uid: str = Field(
        default="", description="Its uid (`metadata.uid`); empty outside of Kubernetes."
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

    def environment(self) -> dict[str, str]:
        """These settings as environment variables, for a child process."""
        given = self.model_dump(exclude_none=True, exclude_unset=True)
        return {f"{PREFIX}{name.upper()}": str(value) for name, value in given.items()}

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


def from_environment(environ: Mapping[str, str] = os.environ) -> WorkerSettings:
    """Read the settings.

    Raises:
        InputError: A variable is missing or wrong; names it.
    """
    given = {
        name: environ[f"{PREFIX}{name.upper()}"]
        for name in WorkerSettings.model_fields
        if f"{PREFIX}{name.upper()}" in environ
    }
    try:
        return WorkerSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        variable = f"{PREFIX}{str(first['loc'][0]).upper()}"
        raise InputError(variable, first["msg"].lower(), "Set it for this process.") from error


def kubeconfig() -> str | None:
    """The file that Kubernetes' own variable names; None inside of a cluster."""
    return os.environ.get("KUBECONFIG") or None


def secrets() -> Mapping[str, str]:
    """Variables that a spec names instead of holding what is in them, such as `safety.webhook`."""
    return os.environ
