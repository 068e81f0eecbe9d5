"""Jobs on Kubernetes: real workflows and processes, the adapter, and an API server.

Unchanged with KUBECONFIG set to a real server's: its pods are played by processes of this host.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everstep.core.kubernetes_names import TOPOLOGY_RACK
from everstep.core.senses.silence import FEWEST_STEPS
from everstep.core.vocabulary import Outcome, Rung, Symptom
from everstep.selfcheck.faults import write_fault
from everstep.workers.local import faults
from everstep.workflows.job import RunJob
from everstep.workflows.messages import UpdateRequest
from tests.e2e.conftest import STEPS
from tests.e2e.in_cluster import InCluster, in_cluster
from tests.e2e.local import WAITER, Finished
from tests.fakes.kube.faults import Call, Fault, Kind
from tests.fakes.kube.where import ANALYZER, CONTROLLER, NODES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.soak,
    pytest.mark.timeout(600),
]


def waiter(folder: Path, kind: str = "jobset") -> dict[str, object]:
    """A job on two machines of one rank that starts at once and waits, on racks."""
    code = folder / "code"
    code.mkdir()
    (code / "waiter.sh").write_text(WAITER)
    return {
        "command": ["sh", "waiter.sh"],
        "code": {"directory": str(code)},
        "machines": 2,
        "gpus_per_machine": 1,
        "parallelism": {"dp": 2},
        "topology_label": TOPOLOGY_RACK,
        "pods": {"kind": kind},
        "standby": {"count": 1, "self_check": False},
    }


def runs(run: InCluster, attempt: int) -> bool:
    ups = [run.folder.output / f"up-{rank}-{attempt}" for rank in (0, 1)]
    return all(up.exists() for up in ups)


def recovered(run: InCluster, incident: int) -> bool:
    found = run.incidents
    return len(found) >= incident and found[incident - 1].outcome is Outcome.RECOVERED


@pytest.mark.parametrize("kind", ["statefulset", "jobset"])
async def test_a_job_on_pods_loses_a_node_and_a_pod_and_is_changed(
    kind: str, tmp_path: Path, temporal_address: str
) -> None:
    async with in_cluster(tmp_path, temporal_address, 5, 0, 1, **waiter(tmp_path, kind)) as run:
        # Racks are numbered against the nodes: that of n2 is before that of n0 and n1.
        await run.until(lambda: runs(run, 1), "attempt 1 runs")
        await run.until_shown()
        shown = await run.shown()
        assert [shown[slot].rpartition("-")[2] for slot in "01"] == ["n2", "n0"]
        (standby,) = (await run.status()).pool

        # A node dies: its pod hangs, and nobody waits for it.
        lost = shown["1"]
        await run.plays.lose(lost)
        await run.until(lambda: runs(run, 2), "attempt 2 runs")
        await run.until(lambda: recovered(run, 1), "the first incident is over")
        await run.until_shown()
        assert (await run.shown())["1"] == standby.machine
        assert (await run.roles())[lost] == "evicted"
        assert await run.taints(lost) == ["everstep.dev/quarantine"]
        node = await run.where.api.get(f"{NODES}/{lost}")
        assert node["spec"]["unschedulable"]
        conditions = {
            c["type"]: c["message"] for c in node["status"]["conditions"] if "message" in c
        }
        assert conditions["EverstepQuarantined"].startswith(f"{run.spec.name}, incident 1: ")
        assert run.incidents[0].finding.symptom is Symptom.AGENT_LOST

        # Its pod hangs. A Job brings another; else the set of standbys grows by one. The used one
        # has so been replaced.
        assert (await run.standby()).machine not in (lost, standby.machine)

        # Somebody deletes a pod: the watch says so, and its set brings another.
        gone = (await run.shown())["0"]
        name = next(
            p["metadata"]["name"] for p in await run.pods() if p["spec"].get("nodeName") == gone
        )
        await run.where.api.delete(f"{run.where.pods}/{name}", {})
        await run.until(lambda: runs(run, 3), "attempt 3 runs")
        await run.until(lambda: recovered(run, 2), "the second incident is over")
        await run.until_shown()
        told = [entry.text for entry in run.incidents[1].timeline]
        assert any("is being deleted" in text for text in told), told
        # Its node is not to blame.
        assert await run.taints(gone) == []

        # A hot update leaves pods and agents alone.
        before = {pod["metadata"]["uid"] for pod in await run.pods()}
        update = UpdateRequest("ada", settings=(("NAME", "x"),), urgent=True)
        answer = await run.handle.execute_update(RunJob.hot_update, update)  # pyright: ignore[reportUnknownMemberType]
        assert answer.refused == ()
        await run.until(lambda: runs(run, 4), "attempt 4 runs")
        await run.until(lambda: recovered(run, 3), "the third incident is over")
        assert [climb.rung for climb in run.incidents[2].climbs] == [Rung.UPDATE]
        assert {pod["metadata"]["uid"] for pod in await run.pods()} == before
        (run.folder.output / "end").touch()
        result = await run.handle.result()
    assert (result.attempts, result.incidents) == (4, 3)


async def test_a_recovery_waits_for_no_api_server(tmp_path: Path, temporal_address: str) -> None:
    """It is away for all of it, then it refuses one thing; marks follow as far as it lets them."""
    async with in_cluster(tmp_path, temporal_address, 4, 0, 2, **waiter(tmp_path)) as run:
        if run.where.server is None:
            pytest.skip("a real server does not fail at will")
        faults = run.where.server.faults
        await run.until(lambda: runs(run, 1), "attempt 1 runs")
        await run.until_shown()
        shown = await run.shown()
        away = Fault(Kind.ANSWER, lambda call: call.user in (CONTROLLER, ANALYZER), count=10**6)
        faults.order(away)
        await run.plays.lose(shown["1"])
        await run.until(lambda: runs(run, 2), "attempt 2 runs")
        assert await run.taints(shown["1"]) == []
        away.count = 0
        await run.until(lambda: recovered(run, 1), "the first incident is over")
        await run.until_shown()
        assert await run.taints(shown["1"]) == ["everstep.dev/quarantine"]
        assert (await run.roles())[shown["1"]] == "evicted"

        faults.order(Fault(Kind.ANSWER, _cordons, count=10**6, code=403))
        await run.plays.lose(shown["0"])
        await run.until(lambda: runs(run, 3), "attempt 3 runs")
        await run.until(lambda: recovered(run, 2), "the second incident is over")
        told = [entry.text for entry in run.incidents[1].timeline]
        (said,) = [text for text in told if f"could not evict {shown['0']}" in text]
        assert said.endswith("ordered by a test")


def _cordons(call: Call) -> bool:
    return (call.user, call.verb, call.resource) == (CONTROLLER, "patch", "nodes")


async def test_a_trainer_on_pods_hangs_and_loses_a_node_and_ends_bit_equal(
    tmp_path: Path, temporal_address: str, undisturbed: dict[int, str]
) -> None:
    """A pipeline goes for one rank's sake; its machines are tested, released, and wait again."""
    command = ["python", "train.py", "--steps", str(STEPS), "--step-time-s", "1.0"]
    spec: dict[str, object] = {
        "command": command,
        "detection": {"hang_after_at_least_s": 4.0},
        "pods": {"kind": "statefulset"},
    }
    async with in_cluster(tmp_path, temporal_address, 8, STEPS, 2, **spec) as run:
        # Of fewer steps nobody knows how long they take, and so what silence means.
        await run.until(lambda: newest_step(run) > FEWEST_STEPS + 2, "a rhythm")
        hanging = (await run.shown())["1"]
        fault = faults.Fault(faults.FaultKind.HANG, 0, 0.0, "", ("how=skip",))
        write_fault(faults.faults_directory(run.folder.machines / hanging), fault.on(hanging))
        await run.until(lambda: run.incidents and run.incidents[0].returned, "machines return")
        await run.until(lambda: recovered(run, 1), "the first incident is over")
        (hang,) = run.incidents
        assert hang.finding.symptom is Symptom.JOB_HANG
        assert hanging in hang.evicted
        assert set(hang.returned) == set(hang.evicted)
        for machine in hang.returned:
            assert await run.taints(machine) == []
        await run.until_shown()
        roles = await run.roles()
        assert {roles[machine] for machine in hang.returned} == {"standby"}

        lost = (await run.shown())["0"]
        await run.plays.lose(lost)
        await run.until(lambda: recovered(run, 2), "the second incident is over")
        assert await run.taints(lost) == ["everstep.dev/quarantine"]
        await run.handle.result()
        assert Finished(run.folder.path, 0, "", "").digests() == undisturbed


def newest_step(run: InCluster) -> int:
    lines = run.folder.steps.read_text().splitlines() if run.folder.steps.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0
