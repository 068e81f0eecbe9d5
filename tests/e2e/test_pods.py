"""A job from its manifests alone: every process with the variables and files that they give it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from temporalio.client import Client

from everstep.activities.archive import load_incidents
from everstep.core.vocabulary import Rung
from everstep.workers import handles, stopping
from everstep.workers.cluster import install, places
from everstep.workers.cluster.launch import job_objects_with, new_secret
from everstep.workers.cluster.pod import Submission
from everstep.workers.cluster.submit import Target, job_input, submission
from everstep.workers.local.folder import RunFolder
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workers.starting import start_job
from tests.e2e.local import EXAMPLE, WAITER, clean_environment
from tests.fakes.pods import Host, Object, Pod, hosting, templates
from tests.fakes.servers import dev_server

PATIENCE_S = 150.0


FAILS = "echo 'TypeError: this code does nothing'; exit 1\n"


def spec_file(folder: Path, kind: str, **changes: object) -> Path:
    spec: dict[str, object] = {
        "name": "gpt",
        "command": ["python", "train.py", "--steps", "40", "--step-time-s", "0.1"],
        "code": {"directory": str(EXAMPLE)},
        "machines": 2,
        "gpus_per_machine": 1,
        "parallelism": {"dp": 2},
        "standby": {"count": 1},
        "ladder": {"probation_steps": 1, "probation_s": 0.2},
        "safety": {"max_evicted_ratio": 1.0},
        "pods": {"image": "train:1", "kind": kind},
        **changes,
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(spec))  # pyright: ignore[reportUnknownMemberType]
    return file


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.1)


async def ended(address: str, job: str) -> int:
    client = await Client.connect(address, data_converter=DATA_CONVERTER)
    handle = handles.of_job(client, job)
    return (await asyncio.wait_for(handle.result(), PATIENCE_S)).incidents


def start_everything(host: Host, objects: list[Object]) -> list[Pod]:
    """As a cluster would, each component's pods; those of machines, each on a node of its own."""
    for component in ("controller", "analyzer"):
        for name, template, size in templates(objects, component):
            for number in range(size):
                host.start(template, f"{name}-{number}", "infra")
    nodes = itertools.count()
    return [
        host.start(template, f"{name}-{number}", f"node-{next(nodes)}")
        for name, template, size in templates(objects, "machine")
        for number in range(size)
    ]


def start_first(host: Host, objects: list[Object], component: str) -> Pod:
    """One pod of a component, whose name no other one has."""
    name, template, _ = next(templates(objects, component))
    return host.start(template, f"{name}-{len(host.pods)}", "infra")


def everything(
    folder: Path, kind: str, address: str, **changes: object
) -> tuple[Submission, list[Object]]:
    """A job, and all manifests of it and of its namespace."""
    wanted = install.Installation(temporal_address=address, temporal_namespace="default")
    target = Target(wanted.namespace, install.controller_image(wanted))
    given = submission(spec_file(folder, kind, **changes), target)
    return given, [*install.manifests(wanted), *job_objects_with(given, new_secret())]


def test_the_control_plane_is_ready_while_temporal_answers(tmp_path: Path) -> None:
    (tmp_path / "temporal").mkdir()
    with ExitStack() as server:
        address = server.enter_context(dev_server(tmp_path / "temporal"))
        _, objects = everything(tmp_path, "statefulset", address)
        with hosting(tmp_path, objects, {"EVERSTEP_CLUSTER": "local"}) as host:
            for component in ("controller", "analyzer"):
                start_first(host, objects, component)
            for pod in host.pods:
                pod.wait_ready()
            runs = host.claim("everstep-runs") / "jobs"
            assert scrape(host.pods[0], (runs / ".metrics-token").read_text()) >= {
                "temporal_num_pollers",
                "temporal_worker_task_slots_available",
            }
            with pytest.raises(urllib.error.HTTPError, match="401"):
                scrape(host.pods[0], "a guess")
            server.close()
            until(lambda: not any(pod.ready() for pod in host.pods), "nobody is ready any more")
            assert all(pod.process.poll() is None for pod in host.pods), "they wait for it"
            late = [start_first(host, objects, kind) for kind in ("controller", "machine")]
            until(lambda: all("no Temporal server" in pod.log.read_text() for pod in late), "tries")
            for pod in host.pods:
                pod.process.terminate()
            for pod in host.pods:
                code = stopping.STOPPED if pod in late else 0
                assert pod.process.wait(pod.grace_s) == code, "they end in time, whoever is away"


def scrape(pod: Pod, token: str) -> set[str]:
    """Names of what a controller's pod tells Prometheus."""
    request = urllib.request.Request(f"http://{pod.address}:{places.METRICS_PORT}/metrics")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return {f.name for f in text_string_to_metric_families(answer.read().decode())}


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["jobset", "statefulset"])
def test_a_job_trains_on_what_its_manifests_say(
    kind: str, tmp_path: Path, temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Orders name the code's place, which must so be one of this host.
    monkeypatch.setattr(places, "CODE", str(tmp_path / "code"))
    given, objects = everything(tmp_path, kind, temporal_address)
    # The API server's part is tested where there is one (tests/e2e/test_in_cluster.py).
    with hosting(tmp_path, objects, {"EVERSTEP_CLUSTER": "local"}) as host:
        # Where the cluster that stands in here is asked for further machines; nobody answers.
        jobs = host.claim(given.spec.pods.volume_claim) / "jobs"
        (jobs / "requests").mkdir(parents=True)
        agents = start_everything(host, objects)
        asyncio.run(start(temporal_address, given))
        for pod in host.pods:
            pod.wait_ready()
        run = RunFolder(jobs / given.job)
        until(lambda: run.steps.exists() and len(run.steps.read_text().splitlines()) > 3, "steps")
        # The node of the first training pod goes, with all that runs on it.
        agents[0].process.kill()
        assert asyncio.run(ended(temporal_address, given.job)) == 1
        (record,) = load_incidents(run.incidents)
        assert (record.evicted, record.replacements) == (("node-0",), ("node-2",))
        assert len(list(run.output.glob("digest-*.json"))) == 2
        if kind == "jobset":
            # Pods of a JobSet end with their job, and so free their GPUs.
            until(lambda: all(a.process.poll() == 0 for a in agents[1:]), "agents end")
        assert run.metrics.joinpath("token").read_text() == token(objects)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_pods_go_back_to_the_version_before_and_on_to_another(
    tmp_path: Path, temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both versions are sent when the job is submitted, a third one is put onto the volume."""
    monkeypatch.setattr(places, "CODE", str(tmp_path / "code"))
    versions = {"now": FAILS, "before": WAITER, "next": f"# Better.\n{WAITER}"}
    for name, script in versions.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "waiter.sh").write_text(script)
    given, objects = everything(
        tmp_path,
        "jobset",
        temporal_address,
        name="back",
        command=["sh", "waiter.sh"],
        code={"directory": "now", "previous": "before"},
        standby={"count": 0},
    )
    with hosting(tmp_path, objects, {"EVERSTEP_CLUSTER": "local"}) as host:
        start_everything(host, objects)
        asyncio.run(start(temporal_address, given))
        run = RunFolder(host.claim(given.spec.pods.volume_claim) / "jobs" / given.job)

        def runs(attempt: int) -> bool:
            return all((run.output / f"up-{rank}-{attempt}").exists() for rank in (0, 1))

        until(lambda: runs(2), "the version before runs")
        until(lambda: len(load_incidents(run.incidents)) == 1, "its incident is over")
        (record,) = load_incidents(run.incidents)
        assert [climb.rung for climb in record.climbs] == [Rung.ROLLBACK]
        # As a person does in a controller's pod, where the volume is and the server is known. What
        # the analyzer of a cluster notes there, whose API server is left out here:
        where = {"own": False, "address": temporal_address, "namespace": "default"}
        run.write_state(job=given.job, phase="running", in_cluster=True, temporal=where, ui="")
        update = ["hot-update", str(run.path), "--code", str(tmp_path / "next"), "--urgent"]
        done = subprocess.run(
            [sys.executable, "-m", "everstep.cli.main", *update],
            env=clean_environment() | {"TEMPORAL_ADDRESS": temporal_address},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        until(lambda: runs(3), "the other version runs")
        # One that is to go ends so that its Job brings another in its place.
        going = start_first(host, objects, "machine")
        going.wait_ready()
        going.process.terminate()
        assert going.process.wait(going.grace_s) == stopping.STOPPED
        (run.output / "end").touch()
        assert asyncio.run(ended(temporal_address, given.job)) == 2
        assert [c.rung for c in load_incidents(run.incidents)[1].climbs] == [Rung.UPDATE]


def token(objects: list[Object]) -> str:
    (secret,) = [one for one in objects if one["kind"] == "Secret"]
    return base64.b64decode(secret["data"]["metrics-token"]).decode()


async def start(address: str, given: Submission) -> None:
    client = await Client.connect(address, data_converter=DATA_CONVERTER)
    await start_job(client, job_input(given, from_scratch=False))
