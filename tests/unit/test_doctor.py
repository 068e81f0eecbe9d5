"""What a doctor says of clusters that lack something."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from tests.conftest import free_port
from tests.fakes.kube.server import kubeconfig
from tests.unit.test_submit import write

from everstep.activities.kube.connection import connected
from everstep.spec.job import JobSpec
from everstep.spec.load import read_spec
from everstep.workers.cluster.doctor import look_at_cluster, look_at_ptrace
from everstep.workers.cluster.finding import Finding, State

Object = dict[str, Any]

NAMESPACE = "/api/v1/namespaces/everstep"
REVIEWS = "/apis/authorization.k8s.io/v1"


class Cluster:
    """An API server that says what a test has written down."""

    def __init__(self) -> None:
        self.allows: Callable[[Object], bool] = lambda asked: True
        self.may_ask = True
        self.objects: dict[str, Object] = {
            "/version": {"gitVersion": "v1.36.2"},
            NAMESPACE: {"metadata": {"name": "everstep"}},
            "/apis/jobset.x-k8s.io/v1alpha2": {"resources": []},
            "/apis/apps/v1/namespaces/everstep/deployments/everstep-controller": {
                "spec": {"replicas": 2},
                "status": {"readyReplicas": 2},
            },
            f"{NAMESPACE}/persistentvolumeclaims/everstep-runs": {
                "spec": {"accessModes": ["ReadWriteMany"]},
                "status": {"phase": "Bound"},
            },
            "/api/v1/nodes": {"items": [{"status": {"allocatable": {"nvidia.com/gpu": "8"}}}]},
            "/apis/node.k8s.io/v1/runtimeclasses/nvidia": {"handler": "nvidia"},
        }
        self.asked: list[Object] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.startswith(REVIEWS):
            body = await request.json()
            if body["kind"] == "SubjectAccessReview" and not self.may_ask:
                said = {"reason": "Forbidden", "message": "subjectaccessreviews is forbidden"}
                return web.json_response(said, status=403)
            self.asked.append(body)
            return web.json_response({**body, "status": {"allowed": self.allows(body["spec"])}})
        found = self.objects.get(request.path)
        if found is None:
            return web.json_response({"reason": "NotFound", "message": "none"}, status=404)
        return web.json_response(found)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def config(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Path]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", cluster.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    file = tmp_path / "kubeconfig"
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    file.write_text(yaml.safe_dump(kubeconfig(url)))  # pyright: ignore[reportUnknownMemberType]
    yield file
    await runner.cleanup()


async def look(config: Path, spec: JobSpec | None = None) -> dict[str, Finding]:
    async with connected(str(config)) as connection:
        return {one.item: one for one in await look_at_cluster(connection, "everstep", spec)}


def job(folder: Path, **pods: Any) -> JobSpec:
    """Four machines of eight GPUs."""
    return read_spec(write(folder, pods={"image": "train:1", **pods}))


async def test_a_cluster_that_has_everything(cluster: Cluster, config: Path) -> None:
    found = await look(config)
    assert {one.state for one in found.values()} == {State.OK}, found
    asked = [body["spec"]["resourceAttributes"] for body in cluster.asked]
    assert {"group": "", "resource": "nodes", "verb": "patch"} in asked
    eviction = {"group": "", "resource": "pods", "subresource": "eviction", "verb": "create"}
    assert {**eviction, "namespace": "everstep"} in asked
    accounts = {body["spec"]["user"] for body in cluster.asked if "user" in body["spec"]}
    assert accounts == {
        "system:serviceaccount:everstep:everstep-controller",
        "system:serviceaccount:everstep:everstep-analyzer",
        "system:serviceaccount:everstep:everstep-node",
    }


@pytest.mark.parametrize(
    ("path", "item", "fix"),
    [
        (NAMESPACE, "namespace everstep", "everstep install --print"),
        (
            "/apis/apps/v1/namespaces/everstep/deployments/everstep-controller",
            "controllers",
            "everstep install --print",
        ),
        (f"{NAMESPACE}/persistentvolumeclaims/everstep-runs", "volume of runs", "everstep install"),
    ],
)
async def test_what_is_not_there_is_named_with_its_fix(
    path: str, item: str, fix: str, cluster: Cluster, config: Path
) -> None:
    del cluster.objects[path]
    found = (await look(config))[item]
    assert found.state is State.MISSING
    assert fix in found.fix


async def test_what_only_some_jobs_need_is_judged_by_the_job(
    cluster: Cluster, config: Path, tmp_path: Path
) -> None:
    del cluster.objects["/apis/jobset.x-k8s.io/v1alpha2"]
    del cluster.objects["/apis/node.k8s.io/v1/runtimeclasses/nvidia"]
    # Whether a job is to come that needs it, nobody has said.
    said = await look(config)
    assert {said[item].state for item in ("JobSet", "GPU runtime")} == {State.UNCLEAR}
    assert "pods.kind: statefulset" in said["JobSet"].fix

    cluster.asked.clear()
    said = await look(config, job(tmp_path, runtime_class="nvidia"))
    assert {item for item, one in said.items() if one.state is State.MISSING} == {
        "JobSet",
        "GPUs",
        "GPU runtime",
    }
    assert "1 of 1 nodes offer 8, and the job has 4 machines" in said["GPUs"].detail
    assert groups(cluster) == {"jobset.x-k8s.io"}

    cluster.asked.clear()
    without_gpus = {"nvidia.com/gpu": "0"}
    said = await look(config, job(tmp_path, kind="statefulset", resources=without_gpus))
    assert {one.state for one in said.values()} == {State.OK, State.UNCLEAR}
    assert said["GPU runtime"].state is State.UNCLEAR
    assert groups(cluster) == {"apps"}


def groups(cluster: Cluster) -> set[str]:
    """API groups of which whoever submits was asked for sets of pods."""
    asked = [body["spec"] for body in cluster.asked if "user" not in body["spec"]]
    sets = ("statefulsets", "jobsets")
    attributes = [spec["resourceAttributes"] for spec in asked]
    return {one["group"] for one in attributes if one["resource"] in sets}


async def test_the_volume_is_the_jobs(config: Path, tmp_path: Path) -> None:
    said = await look(config, job(tmp_path, volume_claim="scratch"))
    assert "no claim scratch" in said["volume of runs"].detail


async def test_a_right_that_is_lacking_is_named(cluster: Cluster, config: Path) -> None:
    def allows(spec: Object) -> bool:
        asked = spec["resourceAttributes"]
        return "user" not in spec or (asked["resource"], asked["verb"]) != ("nodes", "patch")

    cluster.allows = allows
    found = await look(config)
    assert found["rights of controllers"].state is State.MISSING
    assert "2 are refused: patch nodes, patch nodes/status" in found["rights of controllers"].detail
    assert found["your rights to submit"].state is State.OK


async def test_whoever_may_not_ask_is_told_nothing_good(cluster: Cluster, config: Path) -> None:
    cluster.may_ask = False
    found = (await look(config))["rights of controllers"]
    assert found.state is State.UNCLEAR
    assert "kubectl auth can-i --list --as system:serviceaccount" in found.fix


CASES: list[tuple[str, Object, str, State, str]] = [
    (
        NAMESPACE,
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
        "namespace everstep",
        State.MISSING,
        "SYS_PTRACE",
    ),
    ("/api/v1/nodes", {"items": [{"status": {}}]}, "GPUs", State.MISSING, "none of 1 nodes"),
    (
        f"{NAMESPACE}/persistentvolumeclaims/everstep-runs",
        {"spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Bound"}},
        "volume of runs",
        State.UNCLEAR,
        "only one node",
    ),
    (
        f"{NAMESPACE}/persistentvolumeclaims/everstep-runs",
        {"spec": {}, "status": {"phase": "Pending"}},
        "volume of runs",
        State.MISSING,
        "Pending",
    ),
    (
        "/apis/apps/v1/namespaces/everstep/deployments/everstep-controller",
        {"spec": {"replicas": 2}, "status": {}},
        "controllers",
        State.MISSING,
        "none of 2",
    ),
]


@pytest.mark.parametrize(("path", "said", "item", "state", "words"), CASES)
async def test_what_is_there_and_will_not_do(
    path: str, said: Object, item: str, state: State, words: str, cluster: Cluster, config: Path
) -> None:
    cluster.objects[path] = said
    found = (await look(config))[item]
    assert found.state is state
    assert words in found.detail
    assert found.fix


async def test_a_cluster_that_does_not_answer_is_missing(cluster: Cluster, config: Path) -> None:
    del cluster.objects["/version"]
    found = await look(config)
    assert [one.state for one in found.values()] == [State.MISSING]


@pytest.mark.parametrize(
    ("scope", "state"),
    [("0\n", State.OK), ("1\n", State.UNCLEAR), ("nonsense", State.UNCLEAR), (None, State.OK)],
)
def test_ptrace_is_read_from_the_hosts_rule(
    scope: str | None, state: State, tmp_path: Path
) -> None:
    file = tmp_path / "ptrace_scope"
    if scope is not None:
        file.write_text(scope)
    assert look_at_ptrace(file).state is state


async def test_the_command_says_it_all_as_json(cluster: Cluster, config: Path) -> None:
    command = [sys.executable, "-m", "everstep.cli.main", "doctor", "--json"]
    environment = {
        **os.environ,
        "KUBECONFIG": str(config),
        "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, complaint = await asyncio.wait_for(process.communicate(), 60)
    found = {one["item"]: one for one in json.loads(said)}
    assert process.returncode == 1, complaint
    assert found["API server"]["state"] == "ok"
    assert found["Temporal server"]["state"] == "missing"


def test_without_any_cluster_all_else_is_looked_at(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "everstep.cli.main", "doctor", "--json"]
    environment = {
        **os.environ,
        "KUBECONFIG": str(tmp_path / "none"),
        "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = {one["item"]: one for one in json.loads(done.stdout)}
    assert list(found) == ["API server", "Temporal server", "ptrace"]
    assert found["API server"]["state"] == "missing"
    assert "KUBECONFIG" in found["API server"]["detail"]
    assert found["API server"]["fix"]
