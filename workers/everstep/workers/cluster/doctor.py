"""What a cluster lacks for jobs to run in it: looks, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.core.errors import EverstepError, PermanentError
from everstep.workers.cluster import rights
from everstep.workers.cluster.finding import Finding, State, missing, ok, unclear

if TYPE_CHECKING:
    from everstep.activities.kube.connection import Connection
    from everstep.spec.job import JobSpec

Object = dict[str, Any]

AGAIN = "Try again; look at the API server's own health."
JOBSET = "/apis/jobset.x-k8s.io/v1alpha2"
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
GPU = "nvidia.com/gpu"
RUNS = "everstep-runs"
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


async def look_at_cluster(
    connection: Connection, namespace: str, spec: JobSpec | None = None
) -> list[Finding]:
    """Everything that the API server can tell.

    Args:
        connection: To it.
        namespace: Where jobs go.
        spec: The job that is to run there; without one, what only some jobs need is no lack.
    """
    try:
        version = await connection.get("/version")
    except EverstepError as error:
        fix = "Name a cluster that answers: KUBECONFIG."
        return [missing("API server", str(error), fix)]
    found = [ok("API server", f"answers, version {version.get('gitVersion', 'unknown')}")]
    home = f"/api/v1/namespaces/{namespace}"
    installed = await _find(connection, home)
    found.append(_namespace(namespace, installed))
    jobset = await _job_set(connection, spec)
    found.append(jobset)
    uses_job_sets = jobset.state is State.OK if spec is None else spec.pods.kind == "jobset"
    found += await rights.look(connection, namespace, uses_job_sets)
    found.append(_controllers(await _find(connection, _deployment(namespace))))
    claim = RUNS if spec is None else spec.pods.volume_claim
    found.append(_volume(claim, await _find(connection, f"{home}/persistentvolumeclaims/{claim}")))
    found.append(await _gpus(connection, spec))
    wanted = None if spec is None else spec.pods.runtime_class
    name = wanted or "nvidia"
    found.append(_runtime_class(name, wanted, await _find(connection, f"{RUNTIME_CLASSES}/{name}")))
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


async def _job_set(connection: Connection, spec: JobSpec | None) -> Finding:
    if spec is not None and spec.pods.kind != "jobset":
        return ok("JobSet", "the job does not need it: StatefulSets keep its pods")
    found = await _find(connection, JOBSET)
    if isinstance(found, EverstepError):
        return _unclear("JobSet", found)
    if found is not None:
        return ok("JobSet", "its CRD is installed")
    fix = "Install it (jobset.sigs.k8s.io); or set pods.kind: statefulset in specs."
    if spec is not None:
        return missing("JobSet", "its CRD is not installed", fix)
    said = "its CRD is not installed, which jobs of pods.kind: jobset need"
    return unclear("JobSet", said, f"{fix} For one job: everstep doctor SPEC.")


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


def _volume(claim: str, found: Found) -> Finding:
    item = "volume of runs"
    if isinstance(found, EverstepError):
        return _unclear(item, found)
    if found is None:
        fix = f"Run: {rights.INSTALL}" if claim == RUNS else "Make it, or name another."
        return missing(item, f"there is no claim {claim}", fix)
    phase = found.get("status", {}).get("phase")
    if phase != "Bound":
        fix = f"Name a storage class that offers it: kubectl describe pvc {claim}."
        return missing(item, f"the claim {claim} is {phase}", fix)
    modes = found["spec"].get("accessModes", [])
    if "ReadWriteMany" not in modes:
        fix = "Fine on one node; else claim it ReadWriteMany."
        return unclear(item, f"it is {', '.join(modes)}: only one node's pods can have it", fix)
    return ok(item, "is bound, for many nodes")


async def _gpus(connection: Connection, spec: JobSpec | None) -> Finding:
    item = "GPUs"
    wanted = 1 if spec is None else _gpus_of(spec)
    if not wanted:
        return ok(item, "the job asks for none")
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
    enough = sum(number >= wanted for number in offered)
    if spec is not None and enough < spec.machines and not spec.pods.share_nodes:
        return missing(
            item,
            f"{enough} of {len(nodes)} nodes offer {wanted}, and the job has {spec.machines}"
            " machines",
            "Add nodes; or change machines and gpus_per_machine.",
        )
    return ok(item, f"{sum(offered)} on {sum(map(bool, offered))} of {len(nodes)} nodes")


def _gpus_of(spec: JobSpec) -> int:
    """GPUs that each of a job's pods asks for."""
    given = spec.pods.resources.get(GPU)
    return int(given) if given is not None and given.isdigit() else spec.gpus_per_machine


def _runtime_class(name: str, wanted: str | None, found: Found) -> Finding:
    item = "GPU runtime"
    if isinstance(found, EverstepError):
        return _unclear(item, found)
    if found is not None:
        told = "as the job names it" if wanted else "set pods.runtime_class to it"
        return ok(item, f"RuntimeClass {name} is there: {told}")
    if wanted:
        fix = "Install the GPU operator; or leave pods.runtime_class out."
        return missing(item, f"there is no RuntimeClass {name}, which the job names", fix)
    return unclear(
        item,
        f"there is no RuntimeClass {name}",
        "Fine where it is the nodes' default runtime; else install the GPU operator.",
    )
