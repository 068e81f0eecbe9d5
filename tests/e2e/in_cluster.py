"""A job in a cluster whose pods are processes of this host: our own processes as the manifests run
them, on the API server of `tests.fakes.kube.where` and whatever else a cluster has, played.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from everstep.activities.archive import load_incidents
from everstep.activities.kube.connection import Json
from everstep.core import names
from everstep.core.kubernetes.objects import entries
from everstep.core.kubernetes_names import LABEL_ROLE, LABEL_SLOT, TOPOLOGY_RACK, standby_set
from everstep.core.model import MachineInfo
from everstep.core.record import IncidentRecord
from everstep.spec.job import JobSpec
from everstep.spec.load import load_spec
from everstep.workers.local import ports
from everstep.workers.local.code import take_version
from everstep.workers.local.folder import RunFolder, claim
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workers.settings import WorkerSettings
from everstep.workflows import options, story
from everstep.workflows.job import RunJob
from everstep.workflows.messages import JobInput, JobResult, JobStatus
from tests.e2e.local import clean_environment, write_spec
from tests.fakes.kube.plays import Plays, kill_all, playing
from tests.fakes.kube.where import ANALYZER, CONTROLLER, NODES, Where, anywhere
from tests.fakes.servers import HOST

PATIENCE_S = 120.0
MOST_INCIDENTS = 6
ASK_EVERY_S = 0.5
"""Each question is work for the job's workflow."""


@dataclass
class InCluster:
    """A job under way in a cluster."""

    where: Where
    plays: Plays
    folder: RunFolder
    spec: JobSpec
    handle: WorkflowHandle[RunJob, JobResult]
    processes: dict[str, subprocess.Popen[bytes]]
    environment: dict[str, str]

    async def add_controller(self, name: str, build: Path | None = None) -> None:
        """Start another controller, and wait until it serves.

        Args:
            name: Of its log, `controller-` and what tells it from others.
            build: Folder of other workflows than ours.
        """
        port = ports.free_port(HOST)
        where = {"KUBECONFIG": str(self.where.of_user(CONTROLLER))}
        given = self.environment | where | {"EVERSTEP_HEALTH_PORT": str(port)}
        if build is not None:
            given["PYTHONPATH"] = os.pathsep.join([str(build), given.get("PYTHONPATH", "")])
        self.processes[name] = _start(self.folder, name, given)

        def ready() -> bool:
            with contextlib.suppress(OSError):
                url = f"http://{HOST}:{port}/readyz"
                return bool(urllib.request.urlopen(url, timeout=5).status == 200)
            return False

        await self.until(lambda: ready(), f"{name} serves")

    async def until(self, holds: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline_s, f"never: {what}\n{await self.explain()}"
            await asyncio.sleep(0.05)

    async def explain(self) -> str:
        told = [f"{e.at_s:.2f} {e.text}" for record in self.incidents for e in record.timeline]
        logs = [
            f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:])
            for log in sorted(self.folder.logs.glob("*.log"))
        ]
        pods = [f"{p['metadata']['name']} {p['metadata'].get('labels')}" for p in await self.pods()]
        return "\n".join([*told, *pods, *logs])

    @property
    def incidents(self) -> list[IncidentRecord]:
        return load_incidents(self.folder.incidents)

    async def status(self) -> JobStatus:
        return await self.handle.query(RunJob.status)

    async def standby(self) -> MachineInfo:
        """Wait for a machine that waits for a slot."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (pool := (await self.status()).pool):
            assert time.monotonic() < deadline_s, f"no standby\n{await self.explain()}"
            await asyncio.sleep(ASK_EVERY_S)
        return pool[0]

    async def pods(self) -> list[Json]:
        items: list[Json] = (await self.where.api.get(self.where.pods))["items"]
        return items

    async def shown(self) -> dict[str, str]:
        """What `kubectl get pods -L everstep.dev/slot` shows: node by slot."""
        return {
            pod["metadata"]["labels"][LABEL_SLOT]: pod["spec"]["nodeName"]
            for pod in await self.pods()
            if LABEL_SLOT in pod["metadata"]["labels"]
        }

    async def roles(self) -> dict[str, str]:
        """Role by node."""
        return {
            pod["spec"]["nodeName"]: pod["metadata"]["labels"][LABEL_ROLE]
            for pod in await self.pods()
            if "nodeName" in pod["spec"]
        }

    async def until_shown(self) -> None:
        """Wait until the cluster shows the slots that the job has given."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            status = await self.status()
            slots = () if status.assignment is None else status.assignment.machine_names()
            wanted = {str(slot): machine for slot, machine in enumerate(slots)}
            if wanted and await self.shown() == wanted:
                return
            told = f"{wanted} is not shown: {await self.shown()}"
            assert time.monotonic() < deadline_s, f"{told}\n{await self.explain()}"
            await asyncio.sleep(ASK_EVERY_S)

    async def taints(self, node: str) -> list[str]:
        found = await self.where.api.get(f"{NODES}/{node}")
        return [str(taint["key"]) for taint in entries(found, "spec", "taints")]


@asynccontextmanager
async def in_cluster(
    folder: Path, temporal_address: str, num_nodes: int, steps: int, standbys: int, **spec: object
) -> AsyncGenerator[InCluster]:
    """A job from its pods to its end; whatever happens, nothing of it stays behind.

    Args:
        folder: An empty one.
        temporal_address: A Temporal server that is there.
        num_nodes: Nodes that are free; racks of two, in an order that is not theirs.
        steps: Of the trainer, where the spec does not name another command.
        standbys: Of the job.
        spec: Other fields of it.
    """
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    spec_file = write_spec(folder, steps, standbys, **{"name": name, **spec})
    job = load_spec(spec_file)
    # Pods of a JobSet's Jobs end with the job, those of StatefulSets do not.
    ends_with_job = job.pods.kind == "jobset"
    run, lock = claim(folder / "run", fresh=False)
    version, code = take_version(job, run.code)
    given = WorkerSettings(
        spec_file=spec_file,
        run_directory=run.path.absolute(),
        secret_file=run.secret.absolute(),
        code_directory=code,
        host=HOST,
        telemetry_host=HOST,
        telemetry_port=ports.free_port(HOST),
        inject_faults=True,
    )
    run.write_state(job=name)
    async with anywhere(folder) as where:
        environment = clean_environment() | given.environment() | {
            "TEMPORAL_ADDRESS": temporal_address,
            "EVERSTEP_CLUSTER": "kubernetes",
            "EVERSTEP_NAMESPACE": where.namespace,
        }  # fmt: skip
        accounts = {"controller": CONTROLLER, "analyzer": ANALYZER}

        def start_agent(pod: Json) -> subprocess.Popen[bytes]:
            metadata, node = pod["metadata"], pod["spec"]["nodeName"]
            own = {
                "EVERSTEP_POD_NAME": metadata["name"],
                "EVERSTEP_POD_UID": metadata["uid"],
                "EVERSTEP_ENDS_WITH_JOB": str(ends_with_job),
            }
            return _start(run, f"agent-{metadata['name']}", environment | own, node)

        processes = {
            kind: _start(run, kind, environment | {"KUBECONFIG": str(where.of_user(account))})
            for kind, account in accounts.items()
        }
        try:
            for number in range(num_nodes):
                rack = f"rack-{(num_nodes - number) // 2}"
                await where.make_node(f"n{number}", **{TOPOLOGY_RACK: rack})
            async with playing(where, start_agent) as plays:
                sizes = {"training": job.machines, "standby": standbys}
                for role, size in sizes.items():
                    labels = {"everstep_dev__job": name, "everstep_dev__role": role}
                    training = f"everstep-{name}-training"
                    set_name = standby_set(name) if role == "standby" else training
                    if ends_with_job:
                        await plays.make_job(f"everstep-{name}-{role}-0", size, **labels)
                    else:
                        await plays.make_set(set_name, size, **labels)
                await _make_budget(where, job)
                client = await Client.connect(temporal_address, data_converter=DATA_CONVERTER)
                handle = await client.start_workflow(
                    RunJob.run,
                    args=[JobInput(job, version, str(code)), None],
                    id=names.job_workflow_id(name),
                    task_queue=names.CONTROLLER_QUEUE,
                    task_timeout=options.WORKFLOW_TASK_TIMEOUT,
                    search_attributes=story.job_attributes(name),
                )
                try:
                    yield InCluster(where, plays, run, job, handle, processes, environment)
                finally:
                    await _end_workflows(client, name)
        finally:
            for process in processes.values():
                kill_all(process.pid)
                process.wait()
            os.close(lock)


def _start(
    run: RunFolder, name: str, environment: dict[str, str], *arguments: str
) -> subprocess.Popen[bytes]:
    module = f"everstep.workers.{name.partition('-')[0]}"
    with (run.logs / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


async def _make_budget(where: Where, job: JobSpec) -> None:
    """As `everstep submit` makes it: it guards what trains and what waits, and nothing that is to
    go by our own word."""
    roles = {"key": LABEL_ROLE, "operator": "In", "values": ["training", "standby"]}
    spec = {
        "minAvailable": job.machines,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {
            "matchLabels": {"everstep.dev/job": job.name},
            "matchExpressions": [roles],
        },
    }
    await where.api.post(where.budgets, {"metadata": {"name": job.name}, "spec": spec})


async def _end_workflows(client: Client, job: str) -> None:
    ids = [names.incident_workflow_id(job, number) for number in range(1, MOST_INCIDENTS + 1)]
    for identifier in [names.job_workflow_id(job), *ids]:
        with contextlib.suppress(RPCError):
            await client.get_workflow_handle(identifier).terminate("test over")
