"""What a cluster has beside its API server, played through the API alone: no double of ours knows.

A controller of sets makes pods, a scheduler binds them to free nodes, one kubelet a node runs a
process for each, and a budget's controller counts. On a server that has some of them already, the
others' work is found done.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psutil

from everstep.activities.kube.connection import Json, NotThereError
from everstep.core.errors import EverstepError
from everstep.core.kubernetes.objects import entries
from tests.fakes.kube.eviction import is_ready
from tests.fakes.kube.selectors import matches
from tests.fakes.kube.where import NODES, Where, label_names

EVERY_S = 0.1
GRACE_S = 3.0
JOB_NAME = "batch.kubernetes.io/job-name"
JOB_INDEX = "batch.kubernetes.io/job-completion-index"

Start = Callable[[Json], subprocess.Popen[bytes]]


@dataclass
class Running:
    """A pod's process; its node's kubelet restarts it when it ends by itself."""

    name: str
    node: str
    process: subprocess.Popen[bytes]
    stopping_since_s: float | None = None


@dataclass
class Plays:
    """The actors.

    Attributes:
        where: The server, and the namespace in which they act.
        start: Starts the process of a pod that has been bound.
        dead: Nodes whose kubelet is silent, and whose processes are gone.
    """

    where: Where
    start: Start
    dead: set[str] = field(default_factory=set[str])
    running: dict[str, Running] = field(default_factory=dict[str, Running])

    @property
    def sets(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.where.namespace}/statefulsets"

    @property
    def jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.where.namespace}/jobs"

    async def make_job(self, name: str, size: int, **labels: str) -> None:
        """A Job as a JobSet makes it of ours: each of its pods is replaced once it has failed, or
        its deletion has begun."""
        spec: Json = {
            "parallelism": size,
            "completions": size,
            "completionMode": "Indexed",
            "backoffLimit": 1000,
            "template": {
                "metadata": {"labels": label_names(labels)},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "agent", "image": "none"}],
                },
            },
        }
        await self.where.api.post(self.jobs, {"metadata": {"name": name}, "spec": spec})

    async def make_set(self, name: str, size: int, **labels: str) -> None:
        """A StatefulSet whose pods carry these labels, named as by `Where.make_pod`."""
        keys = {"app": name, **label_names(labels)}
        spec: Json = {
            "replicas": size,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": keys},
                "spec": {"containers": [{"name": "agent", "image": "none"}]},
            },
        }
        await self.where.api.post(self.sets, {"metadata": {"name": name}, "spec": spec})

    async def lose(self, node: str) -> None:
        """Cut a node's power: its processes are gone, and nobody there says or does anything."""
        self.dead.add(node)
        self.where.silent.add(node)
        for run in [run for run in self.running.values() if run.node == node]:
            kill_all(run.process.pid)
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        status = {"status": {"conditions": [unknown]}}
        await self.where.api.patch(f"{NODES}/{node}/status", status)

    async def act(self) -> None:
        """Act for ever."""
        while True:
            with contextlib.suppress(EverstepError):
                await self._make_pods()
                await self._bind()
                await self._count()
                await self._run()
            await asyncio.sleep(EVERY_S)

    async def _pods(self) -> list[Json]:
        items: list[Json] = (await self.where.api.get(self.where.pods))["items"]
        return items

    async def _make_pods(self) -> None:
        pods = await self._pods()
        await self._make_pods_of_jobs(pods)
        there = {pod["metadata"]["name"] for pod in pods}
        for one in (await self.where.api.get(self.sets))["items"]:
            template = one["spec"]["template"]
            for number in range(one["spec"]["replicas"]):
                name = f"{one['metadata']['name']}-{number}"
                if name not in there:
                    metadata = {"name": name, "labels": template["metadata"]["labels"]}
                    pod = {"metadata": metadata, "spec": template["spec"]}
                    with contextlib.suppress(EverstepError):
                        await self.where.api.post(self.where.pods, pod)

    async def _make_pods_of_jobs(self, pods: list[Json]) -> None:
        living = {_place(pod) for pod in pods if _goes_on(pod)}
        for one in (await self.where.api.get(self.jobs))["items"]:
            template, name = one["spec"]["template"], one["metadata"]["name"]
            for index in range(one["spec"]["parallelism"]):
                if (name, str(index)) not in living:
                    marks = {JOB_NAME: name, JOB_INDEX: str(index)}
                    metadata = {
                        "name": f"{name}-{index}-{uuid.uuid4().hex[:5]}",
                        "labels": {**template["metadata"]["labels"], **marks},
                    }
                    with contextlib.suppress(EverstepError):
                        pod = {"metadata": metadata, "spec": template["spec"]}
                        await self.where.api.post(self.where.pods, pod)

    async def _bind(self) -> None:
        """One pod a node, in order of their names, never on a node that is shut."""
        pods = await self._pods()
        taken = {pod["spec"].get("nodeName") for pod in pods if not _has_ended(pod)}
        nodes = [await self.where.api.get(f"{NODES}/{name}") for name in self.where.nodes]
        free = [n["metadata"]["name"] for n in nodes if _is_open(n, self.dead)]
        free = [name for name in free if name not in taken]
        waiting = [p["metadata"]["name"] for p in pods if not p["spec"].get("nodeName")]
        for name, node in zip(sorted(waiting), free, strict=False):
            body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
            with contextlib.suppress(EverstepError):
                await self.where.api.post(f"{self.where.pods}/{name}/binding", body)

    async def _count(self) -> None:
        """What a budget allows, for those with a whole number of pods that must stay."""
        pods = await self._pods()
        for budget in (await self.where.api.get(self.where.budgets))["items"]:
            ours = [pod for pod in pods if matches(pod, budget["spec"]["selector"])]
            healthy = [p for p in ours if is_ready(p) and "deletionTimestamp" not in p["metadata"]]
            wanted = budget["spec"]["minAvailable"]
            status = {
                "disruptionsAllowed": max(0, len(healthy) - wanted),
                "currentHealthy": len(healthy),
                "desiredHealthy": wanted,
                "expectedPods": len(ours),
                "observedGeneration": budget["metadata"]["generation"],
            }
            path = f"{self.where.budgets}/{budget['metadata']['name']}/status"
            await self.where.api.patch(path, {"status": status})

    async def _run(self) -> None:
        """What the kubelets do."""
        pods = {pod["metadata"]["uid"]: pod for pod in await self._pods()}
        for uid, pod in pods.items():
            node = pod["spec"].get("nodeName")
            if not node or node in self.dead or _has_ended(pod):
                continue
            if "deletionTimestamp" in pod["metadata"]:
                await self._stop(uid, pod)
            elif uid not in self.running:
                await self._start(uid, pod)
            elif (code := self.running[uid].process.poll()) is not None:
                await self._ended(uid, pod, code)
        for uid in [uid for uid in self.running if uid not in pods]:
            kill_all(self.running.pop(uid).process.pid)

    async def _start(self, uid: str, pod: Json) -> None:
        name = pod["metadata"]["name"]
        self.running[uid] = Running(name, pod["spec"]["nodeName"], self.start(pod))
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "conditions": [ready]}
        await self.where.api.patch(f"{self.where.pods}/{name}/status", {"status": status})

    async def _ended(self, uid: str, pod: Json, code: int) -> None:
        """Start a container again that has ended, or say how it did, as its pod would have it."""
        if pod["spec"].get("restartPolicy", "Always") == "Always":
            await self._start(uid, pod)
            return
        status: Json = {"phase": "Failed" if code else "Succeeded", "conditions": []}
        path = f"{self.where.pods}/{pod['metadata']['name']}/status"
        await self.where.api.patch(path, {"status": status})

    async def _stop(self, uid: str, pod: Json) -> None:
        run, now_s = self.running.get(uid), asyncio.get_running_loop().time()
        if run is not None and run.process.poll() is None:
            if run.stopping_since_s is None:
                run.stopping_since_s = now_s
                run.process.send_signal(signal.SIGTERM)
            if now_s - run.stopping_since_s < GRACE_S:
                return
            kill_all(run.process.pid)
            run.process.wait()
        self.running.pop(uid, None)
        now = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        with contextlib.suppress(NotThereError):
            await self.where.api.delete(f"{self.where.pods}/{pod['metadata']['name']}", now)

    async def clean(self) -> None:
        """End every process and delete every set."""
        for run in self.running.values():
            kill_all(run.process.pid)
            run.process.wait()
        for path in (self.sets, self.jobs):
            for one in (await self.where.api.get(path))["items"]:
                await self.where.api.delete(f"{path}/{one['metadata']['name']}", {})


@asynccontextmanager
async def playing(where: Where, start: Start) -> AsyncGenerator[Plays]:
    """Actors for as long as the block runs."""
    plays = Plays(where, start)
    task = asyncio.create_task(plays.act())
    try:
        yield plays
    finally:
        task.cancel()
        await asyncio.wait([task])
        await plays.clean()


def kill_all(pid: int) -> None:
    """SIGKILL a process and all its descendants, as a power cut would."""
    try:
        process = psutil.Process(pid)
        family: Iterable[psutil.Process] = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def _place(pod: Json) -> tuple[str, str]:
    """Of which Job a pod is, and which one of it."""
    labels = pod["metadata"].get("labels", {})
    return labels.get(JOB_NAME, ""), labels.get(JOB_INDEX, "")


def _has_ended(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Failed", "Succeeded")


def _goes_on(pod: Json) -> bool:
    """Whether nobody has to take its place: one that ended well is done."""
    if pod["status"].get("phase") == "Succeeded":
        return True
    return not _has_ended(pod) and "deletionTimestamp" not in pod["metadata"]


def _is_open(node: Json, dead: set[str]) -> bool:
    spec = node["spec"]
    taints = [t for t in entries(node, "spec", "taints") if t["effect"] != "PreferNoSchedule"]
    return not spec.get("unschedulable") and not taints and node["metadata"]["name"] not in dead
