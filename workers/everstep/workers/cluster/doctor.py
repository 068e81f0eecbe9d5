"""What a cluster lacks for jobs to run in it: looks, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.core.errors import EverstepError, PermanentError
from everstep.workers.cluster import rights
from everstep.workers.cluster.finding import Finding, missing, ok, unclear

if TYPE_CHECKING:
    from everstep.activities.kube.connection import Connection

Object = dict[str, Any]

AGAIN = "Try again; look at the API server's own health."
JOBSET = "/apis/jobset.x-k8s.io/v1alpha2"
RUNTIME_CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
GPU = "nvidia.com/gpu"
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


async def look_at_cluster(connection: Connection, namespace: str) -> list[Finding]:
    """Everything that the API server can tell."""
    try:
        version = await connection.get("/version")
    except EverstepError as error:
        fix = "Name a cluster that answers: KUBECONFIG."
        return [missing("API server", str(error), fix)]
    found = [ok("API server", f"answers, version {version.get('gitVersion', 'unknown')}")]
    home = f"/api/v1/namespaces/{namespace}"
    installed = await _find(connection, home)
    found.append(_namespace(namespace, installed))
    jobset = await _job_set(connection)
    found.append(jobset)
    found += await rights.look(connection, namespace, jobset.state.value == "ok")
    found.append(_controllers(await _find(connection, _deployment(namespace))))
    found.append(_volume(await _find(connection, f"{home}/persistentvolumeclaims/everstep-runs")))
    found.append(await _gpus(connection))
    found.append(_runtime_class(await _find(connection, RUNTIME_CLASS)))
    return found


def look_at_ptrace(scope_file: Path = YAMA) -> Finding:
    """Whether py-spy may ask ranks for their stacks, by this host's own rule."""
    fix = f"Ask a GPU node: cat {YAMA}; above 0, pods need SYS_PTRACE and pods.user: 0."
    try:
        scope = int(scope_file.read_text())
    except FileNotFoundError:
        return ok("ptrace", "this host has no Yama, so a user's processes may look at each other")
    except (OSError, ValueError) as error:
        return unclear("ptrace", str(error), fix)
    if scope == 0:
        return ok("ptrace", "this host lets a user's processes look at each other")
    return unclear(
        "ptrace", f"this host's ptrace_scope is {scope}, so that SYS_PTRACE is needed", fix
    )


Found = Object | EverstepError | None
"""An object; None where there is none; else why nobody could tell."""


async def _find(connection: Connection, path: str) -> Found:
    from everstep.activities.kube.connection import NotThereError  # noqa: PLC0415

    try:
        return await connection.get(path)
    except NotThereError:
        return None
    except EverstepError as error:
        return error


def _unclear(item: str, error: EverstepError) -> Finding:
    if isinstance(error, PermanentError):
        return unclear(item, str(error), "Have somebody look who may.")
    return unclear(item, str(error), AGAIN)


def _deployment(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/everstep-controller"


def _namespace(name: str, found: Found) -> Finding:
    item = f"namespace {name}"
    if isinstance(found, EverstepError):
        return _unclear(item, found)
    if found is None:
        return missing(item, "there is none", f"Run: {rights.INSTALL}")
    labels: dict[str, str] = found["metadata"].get("labels") or dict[str, str]()
    level = labels.get("pod-security.kubernetes.io/enforce")
    if level in ("baseline", "restricted"):
        return missing(
            item,
            f"it enforces `{level}`, which refuses pods with SYS_PTRACE",
            "Label it pod-security.kubernetes.io/enforce=privileged; or set pods.capabilities: [].",
        )
    return ok(item, "is there, and takes training pods")


async def _job_set(connection: Connection) -> Finding:
    found = await _find(connection, JOBSET)
    if isinstance(found, EverstepError):
        return _unclear("JobSet", found)
    if found is None:
        return missing(
            "JobSet",
            "its CRD is not installed",
            "Install it (jobset.sigs.k8s.io); or set pods.kind: statefulset in specs.",
        )
    return ok("JobSet", "its CRD is installed")


def _controllers(found: Found) -> Finding:
    if isinstance(found, EverstepError):
        return _unclear("controllers", found)
    if found is None:
        return missing("controllers", "are not installed", f"Run: {rights.INSTALL}")
    ready, wanted = found.get("status", {}).get("readyReplicas", 0), found["spec"]["replicas"]
    if not ready:
        fix = "Ask why: kubectl describe deployment everstep-controller, and its pods' logs."
        return missing("controllers", f"none of {wanted} is ready", fix)
    return ok("controllers", f"{ready} of {wanted} are ready")


def _volume(found: Found) -> Finding:
    item = "volume of runs"
    if isinstance(found, EverstepError):
        return _unclear(item, found)
    if found is None:
        return missing(item, "there is no claim everstep-runs", f"Run: {rights.INSTALL}")
    phase = found.get("status", {}).get("phase")
    if phase != "Bound":
        fix = "Name a storage class that offers it: kubectl describe pvc everstep-runs."
        return missing(item, f"the claim everstep-runs is {phase}", fix)
    modes = found["spec"].get("accessModes", [])
    if "ReadWriteMany" not in modes:
        fix = "Fine on one node; else claim it ReadWriteMany."
        return unclear(item, f"it is {', '.join(modes)}: only one node's pods can have it", fix)
    return ok(item, "is bound, for many nodes")


async def _gpus(connection: Connection) -> Finding:
    item = "GPUs"
    found = await _find(connection, "/api/v1/nodes")
    if isinstance(found, EverstepError):
        return _unclear(item, found)
    nodes: list[Object] = [] if found is None else found.get("items", [])
    offered = [int(node.get("status", {}).get("allocatable", {}).get(GPU, 0)) for node in nodes]
    if not any(offered):
        return missing(
            item,
            f"none of {len(nodes)} nodes offers {GPU}",
            "Install NVIDIA's device plugin; for none, set pods.resources: {nvidia.com/gpu: '0'}.",
        )
    return ok(item, f"{sum(offered)} on {sum(map(bool, offered))} of {len(nodes)} nodes")


def _runtime_class(found: Found) -> Finding:
    item = "GPU runtime"
    if isinstance(found, EverstepError):
        return _unclear(item, found)
    if found is None:
        return unclear(
            item,
            "there is no RuntimeClass nvidia",
            "Fine where it is the nodes' default runtime; else install the GPU operator.",
        )
    return ok(item, "RuntimeClass nvidia is there: set pods.runtime_class to it")
