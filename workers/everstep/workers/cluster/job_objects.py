"""Everything that one job needs in a cluster, as manifests: pure, plain data out.

Role and slot of a pod change while it lives, so that no selector of a set holds them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import yaml

from everstep.core import kubernetes_names as words
from everstep.spec.job import JobSpec
from everstep.workers.cluster import places
from everstep.workers.cluster.parcel import Parcel
from everstep.workers.cluster.pod import (
    Object,
    Submission,
    analyzer_template,
    labels,
    machine_template,
)

NEVER = 2**31 - 1
"""So many failures of pods a Job takes before it gives up: the ladder decides, and not the Job."""

KEPT_S = 86_400
"""How long the pods of a job that has ended can be looked at."""


def objects(given: Submission, secret: bytes, token: str) -> list[Object]:
    """The manifests of a job, in the order in which they are to be made.

    Args:
        given: The job.
        secret: The job's secret.
        token: What a scraper of metrics has to show.
    """
    made = [_job_secret(given, secret, token)]
    made += [_code(given, parcel) for parcel in given.parcels]
    made += [*_policies(given), _analyzer_service(given), _machine_service(given)]
    made += [_budget(given), _analyzer(given)]
    made += [_job_set(given)] if given.spec.pods.kind == "jobset" else _stateful_sets(given)
    if given.spec.pods.pod_monitor:
        made.append(_pod_monitor(given))
    return made


def submitted(given: Submission) -> str:
    """Digest of all that a person may change between two submissions of a job."""
    told = [given.spec.model_dump(mode="json"), given.version, given.code_directory]
    if given.previous is not None:
        told.append(given.previous.version)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _object(given: Submission, api: str, kind: str, name: str, component: str) -> Object:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": given.namespace,
            "labels": labels(given.job, component),
        },
    }


def _job_secret(given: Submission, secret: bytes, token: str) -> Object:
    """What the job's processes read: the spec too, whose environment may hold secrets."""
    made = _object(given, "v1", "Secret", places.object_name(given.job), "job")
    made["metadata"]["annotations"] = {places.ANNOTATION_SUBMITTED: submitted(given)}
    files = {
        "spec.yaml": _spec_file(given).encode(),
        "secret": secret,
        "metrics-token": token.encode(),
    }
    return {
        **made,
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }


def _spec_file(given: Submission) -> str:
    spec = given.spec.model_dump(mode="json", exclude_unset=True)
    # What prepares a version prepares this copy, too.
    spec["code"] = {**spec["code"], "directory": given.code_directory}
    for source in ("git", "ref", "previous"):
        spec["code"].pop(source, None)
    text: str = yaml.safe_dump(spec, sort_keys=False)  # pyright: ignore[reportUnknownMemberType]
    return text


def _code(given: Submission, parcel: Parcel) -> Object:
    name = places.object_name(given.job, f"code-{parcel.version}")
    made = _object(given, "v1", "ConfigMap", name, "code")
    data = base64.b64encode(parcel.data).decode()
    return {**made, "immutable": True, "binaryData": {places.PARCEL: data}}


def _policies(given: Submission) -> list[Object]:
    """Who may reach the job's pods: its own, on any port, since torch takes those it likes."""
    own: Object = {"podSelector": {"matchLabels": {words.LABEL_JOB: given.job}}}
    monitoring: Object = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    }
    metrics = [{"protocol": "TCP", "port": places.METRICS_PORT}]
    telemetry = [{"protocol": "TCP", "port": places.TELEMETRY_PORT}]
    rules: dict[str, Object] = {"machine": {"from": [own]}}
    rules["analyzer"] = {"from": [own], "ports": telemetry}
    made: list[Object] = []
    for component, rule in rules.items():
        policy = _object(
            given,
            "networking.k8s.io/v1",
            "NetworkPolicy",
            places.object_name(given.job, component),
            component,
        )
        policy["spec"] = {
            "podSelector": {"matchLabels": labels(given.job, component)},
            "policyTypes": ["Ingress"],
            "ingress": [rule, {"from": [monitoring], "ports": metrics}],
        }
        made.append(policy)
    return made


def _analyzer_service(given: Submission) -> Object:
    made = _object(given, "v1", "Service", places.object_name(given.job, "analyzer"), "analyzer")
    made["spec"] = {
        "selector": labels(given.job, "analyzer"),
        # Signs of life are heard also while the Temporal server is away.
        "publishNotReadyAddresses": True,
        "ports": [
            {
                "name": "telemetry",
                "port": places.TELEMETRY_PORT,
                "targetPort": "telemetry",
                "protocol": "TCP",
            }
        ],
    }
    return made


def _machine_service(given: Submission) -> Object:
    """Names for the pods, ready or not: those that train reach each other before they are."""
    made = _object(given, "v1", "Service", places.object_name(given.job), "machine")
    made["spec"] = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels(given.job, "machine"),
        "ports": [{"name": "health", "port": places.HEALTH_PORT, "protocol": "TCP"}],
    }
    return made


def _budget(given: Submission) -> Object:
    """Keeps others from draining what trains; a number, since percentages fail over Jobs' pods."""
    name = places.object_name(given.job)
    made = _object(given, "policy/v1", "PodDisruptionBudget", name, "machine")
    made["spec"] = {
        "minAvailable": given.spec.machines,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {
            "matchLabels": labels(given.job, "machine"),
            "matchExpressions": [
                {
                    "key": words.LABEL_ROLE,
                    "operator": "In",
                    "values": [words.ROLE_TRAINING, words.ROLE_STANDBY],
                }
            ],
        },
    }
    return made


def _analyzer(given: Submission) -> Object:
    name = places.object_name(given.job, "analyzer")
    made = _object(given, "apps/v1", "Deployment", name, "analyzer")
    made["spec"] = {
        "replicas": 1,
        # Two would each tell the job of what it sees.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels(given.job, "analyzer")},
        "template": analyzer_template(given),
    }
    return made


def _sizes(spec: JobSpec) -> dict[str, int]:
    return {words.ROLE_TRAINING: spec.machines, words.ROLE_STANDBY: spec.standby_count()}


def _stateful_sets(given: Submission) -> list[Object]:
    made: list[Object] = []
    for role, size in _sizes(given.spec).items():
        name = places.object_name(given.job, role)
        one = _object(given, "apps/v1", "StatefulSet", name, "machine")
        one["spec"] = {
            "replicas": size,
            "serviceName": places.object_name(given.job),
            "podManagementPolicy": "Parallel",
            # A change of the template never stops a machine that trains.
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {**labels(given.job, "machine"), places.LABEL_SET: role}},
            "template": machine_template(given, role, "Always"),
        }
        made.append(one)
    return made


def _job_set(given: Submission) -> Object:
    made = _object(
        given, "jobset.x-k8s.io/v1alpha2", "JobSet", places.object_name(given.job), "machine"
    )
    made["spec"] = {
        "network": {"enableDNSHostnames": False},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [words.ROLE_TRAINING]},
        "failurePolicy": {"maxRestarts": 0},
        "ttlSecondsAfterFinished": KEPT_S,
        "replicatedJobs": [
            {"name": role, "replicas": 1, "template": {"spec": _job(given, role, size)}}
            for role, size in _sizes(given.spec).items()
            if size
        ],
    }
    return made


def _job(given: Submission, role: str, size: int) -> dict[str, Any]:
    return {
        "parallelism": size,
        "completions": size,
        "completionMode": "Indexed",
        "backoffLimit": NEVER,
        # Each has its own pause before it is replaced, not one that grows with every other's end.
        "backoffLimitPerIndex": NEVER,
        # Without a podFailurePolicy: with one, a pod is replaced when it has ended, which one on a
        # dead node never does; so it is as soon as it is being deleted.
        "template": machine_template(given, role, "Never"),
    }


def _pod_monitor(given: Submission) -> Object:
    name = places.object_name(given.job)
    made = _object(given, "monitoring.coreos.com/v1", "PodMonitor", name, "metrics")
    token = {"name": name, "key": "metrics-token"}
    made["spec"] = {
        "selector": {"matchLabels": {words.LABEL_JOB: given.job}},
        "podMetricsEndpoints": [
            {
                "port": "metrics",
                "authorization": {"type": "Bearer", "credentials": token},
                # As in the target files of a run's folder.
                "relabelings": [
                    {"targetLabel": "everstep_job", "replacement": given.job},
                    {
                        "sourceLabels": ["__meta_kubernetes_pod_name"],
                        "targetLabel": "process",
                    },
                ],
            }
        ],
    }
    return made
