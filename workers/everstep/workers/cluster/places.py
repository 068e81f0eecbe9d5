"""Names and places of a job in a cluster: what manifests, pods and people agree on."""

from __future__ import annotations

from everstep.core.errors import InputError

MAX_NAME_CHARS = 31
"""Of a job: a pod's name of a JobSet of 100,000 has 63 characters, and JobSets are refused that may
come to have longer ones."""

PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"
LABEL_SET = "everstep.dev/set"
"""Which set of pods one belongs to, for good; role and slot change (`core.kubernetes_names`)."""

LABEL_NODE_SENSES = "everstep.dev/node-senses"
"""On pods whose job wants to hear what their node's own process sees."""

ANNOTATION_SUBMITTED = "everstep.dev/submitted"
"""Digest of what was submitted under a job's name."""

TELEMETRY_PORT = 7070
HEALTH_PORT = 8081
METRICS_PORT = 9464

VOLUME = "/var/lib/everstep"
JOBS = f"{VOLUME}/jobs"
"""Run folders of all jobs; a controller is told this, an agent the one of its job."""

EVIDENCE = f"{VOLUME}/evidence"
"""Of all jobs, by digest: controllers read what agents wrote."""

CODE = "/everstep/code"
JOB_FILES = "/etc/everstep/job"
PARCEL_FILES = "/etc/everstep/code"
PARCEL = "code.tar.gz"
TEMPORAL_FILES = "/etc/everstep/temporal"

TEMPORAL = "everstep-temporal"
"""ConfigMap with Temporal's environment variables, and Secret with its `temporal.toml`, if any."""


RESERVED = ("analyzer", "controller", "default-deny", "node", "runs", "secrets", "temporal")
"""Names of jobs whose objects would be called as those of the installation are."""


def object_name(job: str, part: str = "") -> str:
    """Name of one of a job's objects.

    Raises:
        InputError: The job's name is too long for a cluster, or one of the installation's own.
    """
    if job in RESERVED:
        raise InputError(
            f"name ({job})",
            f"everstep-{job} is a part of the installation",
            "Give the job another name.",
        )
    if len(job) > MAX_NAME_CHARS:
        raise InputError(
            f"name ({job})",
            f"has {len(job)} characters, and pods leave room for {MAX_NAME_CHARS}",
            "Give the job a shorter name.",
        )
    return f"everstep-{job}-{part}" if part else f"everstep-{job}"


def run_folder(job: str) -> str:
    """The job's run folder, as its pods see it."""
    return f"{JOBS}/{job}"


def code_folder(version: str) -> str:
    """Where a version that was sent lies in a training pod."""
    return f"{CODE}/{version}"
