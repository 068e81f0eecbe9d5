"""The pods of a job, as the manifests say them: pure, plain data out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everstep.core import kubernetes_names as words
from everstep.core.memory import CodeVersion
from everstep.spec.job import JobSpec
from everstep.workers.cluster import places
from everstep.workers.cluster.parcel import Parcel

Object = dict[str, Any]

GRACE_S = 30
"""Longer than an agent needs to end its ranks, and shorter than anybody waits for a drain."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it goes to a cluster.

    Attributes:
        spec: The job, its image given.
        namespace: Where it goes.
        version: Its code version.
        code_directory: Where that lies in a training pod.
        parcels: The code itself and the version before, as far as they do not lie there already.
        controller_image: Image of the analyzer.
        previous: What a rollback goes to, before any update; None without one.
    """

    spec: JobSpec
    namespace: str
    version: str
    code_directory: str
    parcels: tuple[Parcel, ...]
    controller_image: str
    previous: CodeVersion | None = None

    @property
    def job(self) -> str:
        """Name of the job."""
        return self.spec.name


def labels(job: str, component: str) -> dict[str, str]:
    """What every object of a job is labelled with."""
    return {
        places.PART_OF: "everstep",
        places.COMPONENT: component,
        words.LABEL_JOB: job,
    }


def machine_template(given: Submission, role: str, restart: str) -> Object:
    """A training pod or a standby; all are alike but for the role.

    It has no liveness probe: an agent's death ends its ranks, so that the analyzer judges an agent
    that is silent, and the ladder acts on it.
    """
    pods = given.spec.pods
    spec: Object = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Whoever is left behind by its parent is adopted, and buried, by the pause container.
        "shareProcessNamespace": True,
        "securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"},
            # Of whatever user, they share the volume with controllers and the analyzer.
            "fsGroup": CONTROLLER_USER,
            **({} if pods.user is None else {"runAsUser": pods.user}),
        },
        "containers": [_agent(given, role)],
        "volumes": _machine_volumes(given),
        "tolerations": [
            {
                "key": toleration.key,
                "operator": "Exists" if toleration.value is None else "Equal",
                **({} if toleration.value is None else {"value": toleration.value}),
                **({} if toleration.effect is None else {"effect": toleration.effect}),
            }
            for toleration in pods.tolerations
        ],
        **_placing(given),
    }
    if given.parcels:
        spec["initContainers"] = [_unpacker(given, parcel) for parcel in given.parcels]
    marks = {**labels(given.job, "machine"), places.LABEL_SET: role, words.LABEL_ROLE: role}
    if _node_senses(given):
        marks[places.LABEL_NODE_SENSES] = "true"
    if pods.share_nodes:
        marks[words.LABEL_MACHINE] = "pod"
    return {"metadata": {"labels": marks}, "spec": spec}


def _placing(given: Submission) -> Object:
    pods = given.spec.pods
    placing: Object = {}
    if not pods.share_nodes:
        # A machine is a node: two pods of a job on one would be one name.
        alone = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": labels(given.job, "machine")},
        }
        placing["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}
        }
    if pods.node_selector:
        placing["nodeSelector"] = dict(pods.node_selector)
    if pods.runtime_class:
        placing["runtimeClassName"] = pods.runtime_class
    if pods.service_account:
        placing["serviceAccountName"] = pods.service_account
    if pods.pull_secrets:
        placing["imagePullSecrets"] = [{"name": name} for name in pods.pull_secrets]
    return placing


def _agent(given: Submission, role: str) -> Object:
    pods = given.spec.pods
    return {
        "name": "agent",
        "image": pods.image,
        "command": [pods.python, "-m", "everstep.workers.agent", f"$({_MACHINE})"],
        "env": [*_machine_env(given), *_job_env(given), _of_pod(_HOST, "status.podIP")],
        "envFrom": [{"configMapRef": {"name": places.TEMPORAL}}],
        "ports": [
            {"name": "health", "containerPort": places.HEALTH_PORT},
            {"name": "metrics", "containerPort": places.METRICS_PORT},
        ],
        "readinessProbe": probe("/readyz"),
        "resources": {"limits": _limits(given.spec)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": list(pods.capabilities)},
        },
        "volumeMounts": [
            *_JOB_MOUNTS,
            {"name": "code", "mountPath": places.CODE},
            {"name": "memory", "mountPath": "/dev/shm"},  # noqa: S108 - where it is on Linux
        ],
    }


def _limits(spec: JobSpec) -> dict[str, str]:
    limits = {"nvidia.com/gpu": str(spec.gpus_per_machine), **spec.pods.resources}
    return {name: amount for name, amount in limits.items() if amount != "0"}


def _unpacker(given: Submission, parcel: Parcel) -> Object:
    name = f"code-{parcel.version}"
    place = f"{places.PARCEL_FILES}/{parcel.version}"
    unpack = [f"{place}/{places.PARCEL}", places.code_folder(parcel.version), parcel.version]
    return {
        "name": name,
        "image": given.spec.pods.image,
        "command": [given.spec.pods.python, "-m", "everstep.workers.cluster.parcel", *unpack],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": name, "mountPath": place, "readOnly": True},
            {"name": "code", "mountPath": places.CODE},
        ],
    }


def _machine_volumes(given: Submission) -> list[Object]:
    memory: Object = {"medium": "Memory"}
    if given.spec.pods.shared_memory:
        memory["sizeLimit"] = given.spec.pods.shared_memory
    volumes: list[Object] = [
        *_job_volumes(given),
        {"name": "code", "emptyDir": {}},
        {"name": "memory", "emptyDir": memory},
    ]
    for parcel in given.parcels:
        name = f"code-{parcel.version}"
        config = {"name": places.object_name(given.job, name)}
        volumes.append({"name": name, "configMap": config})
    return volumes


def analyzer_template(given: Submission) -> Object:
    """The analyzer's pod: soft state, no GPU, and it may only look."""
    container: Object = {
        "name": "analyzer",
        "image": given.controller_image,
        "command": ["python", "-m", "everstep.workers.analyzer"],
        "env": [
            *_job_env(given),
            _of_pod(_HOST, "status.podIP"),
            _of_pod(_TELEMETRY_HOST, "status.podIP"),
        ],
        "envFrom": [{"configMapRef": {"name": places.TEMPORAL}}],
        "ports": [
            {"name": "telemetry", "containerPort": places.TELEMETRY_PORT},
            {"name": "health", "containerPort": places.HEALTH_PORT},
            {"name": "metrics", "containerPort": places.METRICS_PORT},
        ],
        "livenessProbe": probe("/healthz", failures=6),
        "readinessProbe": probe("/readyz"),
        "resources": {
            "requests": {"cpu": "500m", "memory": "512Mi"},
            "limits": {"memory": "2Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [*_JOB_MOUNTS, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }
    spec: Object = {
        "terminationGracePeriodSeconds": 10,
        # It watches the job's pods and nodes.
        "serviceAccountName": ANALYZER_ACCOUNT,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": CONTROLLER_USER,
            "runAsGroup": CONTROLLER_USER,
            "fsGroup": CONTROLLER_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [*_job_volumes(given), {"name": "tmp", "emptyDir": {}}],
    }
    return {"metadata": {"labels": labels(given.job, "analyzer")}, "spec": spec}


CONTROLLER_USER = 10001
"""User of the controller's image, and group of everybody who writes to the volume of runs."""

ANALYZER_ACCOUNT = "everstep-analyzer"
"""Account of analyzers, from `deploy/base`."""

_HOST = "EVERSTEP_HOST"
_MACHINE = "EVERSTEP_MACHINE"
_TELEMETRY_HOST = "EVERSTEP_TELEMETRY_HOST"

_JOB_MOUNTS: tuple[Object, ...] = (
    {"name": "job", "mountPath": places.JOB_FILES, "readOnly": True},
    {"name": "runs", "mountPath": places.VOLUME},
    {"name": "temporal", "mountPath": places.TEMPORAL_FILES, "readOnly": True},
)


def probe(path: str, failures: int = 3) -> Object:
    """A probe of one of our processes."""
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": 10,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _job_volumes(given: Submission) -> list[Object]:
    claim = {"claimName": given.spec.pods.volume_claim}
    return [
        {
            "name": "job",
            "secret": {"secretName": places.object_name(given.job), "defaultMode": 0o440},
        },
        {"name": "runs", "persistentVolumeClaim": claim},
        {
            "name": "temporal",
            "secret": {"secretName": places.TEMPORAL, "optional": True, "defaultMode": 0o440},
        },
    ]


def _job_env(given: Submission) -> list[Object]:
    settings = {
        "EVERSTEP_CLUSTER": "kubernetes",
        "EVERSTEP_NAMESPACE": given.namespace,
        "EVERSTEP_SPEC_FILE": f"{places.JOB_FILES}/spec.yaml",
        "EVERSTEP_SECRET_FILE": f"{places.JOB_FILES}/secret",
        "EVERSTEP_RUN_DIRECTORY": places.run_folder(given.job),
        "EVERSTEP_CODE_DIRECTORY": given.code_directory,
        "EVERSTEP_TELEMETRY_PORT": str(places.TELEMETRY_PORT),
        "EVERSTEP_HEALTH_PORT": str(places.HEALTH_PORT),
        "EVERSTEP_METRICS_PORT": str(places.METRICS_PORT),
        "EVERSTEP_EVIDENCE": places.EVIDENCE,
    }
    return [{"name": name, "value": value} for name, value in settings.items()]


def _node_senses(given: Submission) -> bool:
    # A node's process knows machines by their nodes' names alone.
    return given.spec.pods.node_senses and not given.spec.pods.share_nodes


def _machine_env(given: Submission) -> list[Object]:
    name = "metadata.name" if given.spec.pods.share_nodes else "spec.nodeName"
    ends = given.spec.pods.kind == "jobset"
    return [
        _of_pod(_MACHINE, name),
        _of_pod("EVERSTEP_POD_NAME", "metadata.name"),
        _of_pod("EVERSTEP_POD_UID", "metadata.uid"),
        {"name": "EVERSTEP_NODE_SENSES", "value": str(_node_senses(given)).lower()},
        # A StatefulSet would start it again for ever.
        {"name": "EVERSTEP_ENDS_WITH_JOB", "value": str(ends).lower()},
        {
            "name": _TELEMETRY_HOST,
            "value": f"{places.object_name(given.job, 'analyzer')}.{given.namespace}.svc",
        },
    ]


def _of_pod(variable: str, field: str) -> Object:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": field}}}
