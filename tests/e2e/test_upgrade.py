"""Controllers give way to those of another build while an incident is open: nothing is lost.

Unchanged with KUBECONFIG set to a real server's: its pods are played by processes of this host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from pathlib import Path

import pytest
import yaml
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError

from everstep.core.vocabulary import Outcome
from everstep.workers import handles
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.messages import Approval
from tests.e2e.in_cluster import ASK_EVERY_S, PATIENCE_S, InCluster, in_cluster
from tests.e2e.test_in_cluster import recovered, runs, waiter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.soak,
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).resolve().parents[2]
PROBATION = "        now, policy = self._now, self._now.job.spec.ladder\n"
PATCH = "tests-next-build"
GUARDED = f'''{PROBATION}        if workflow.patched("{PATCH}"):
            await workflow.sleep(0.01)
'''
BEGINNING = "        over = False\n"
UNGUARDED = f"        await workflow.sleep(0.01)\n{BEGINNING}"
FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


def build(folder: Path, before: str, after: str) -> Path:
    """Our workflows, with one change in those of incidents."""
    shutil.copytree(ROOT / "workflows", folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "everstep" / "workflows" / "incident.py"
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, after))
    return folder


def grace_s() -> float:
    """How long the manifests let a controller take to end."""
    found = yaml.safe_load_all((ROOT / "deploy/base/controller.yaml").read_text())
    (deployment,) = [one for one in found if one["kind"] == "Deployment"]
    return float(deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])


async def ends_in_time(run: InCluster, name: str) -> None:
    """Tell a controller to end as a kubelet does."""
    process, began_s = run.processes.pop(name), time.monotonic()
    process.terminate()
    await run.until(lambda: process.poll() is not None, f"{name} ends")
    assert process.returncode == 0
    assert time.monotonic() - began_s < grace_s()


async def until_held(run: InCluster, client: Client) -> None:
    """Wait until the first incident waits for a person."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(RPCError):
            record = await handles.of_incident(client, run.spec.name, 1).query(
                ResolveIncident.record
            )
            if record.outcome is Outcome.HELD:
                return
        assert time.monotonic() < deadline_s, f"nobody is asked\n{await run.explain()}"
        await asyncio.sleep(ASK_EVERY_S)


async def test_another_build_takes_an_open_incident_over(
    tmp_path: Path, temporal_address: str
) -> None:
    """One that changes what workflows do behind a patch; one that does not do so holds them up,
    until another one takes its place, and breaks nothing."""
    good = build(tmp_path / "good", PROBATION, GUARDED)
    bad = build(tmp_path / "bad", BEGINNING, UNGUARDED)
    spec = waiter(tmp_path) | {"safety": {"modes": {"evict": "approve"}, "max_evicted_ratio": 1.0}}
    async with in_cluster(tmp_path, temporal_address, 4, 0, 1, **spec) as run:
        client = await Client.connect(temporal_address, data_converter=DATA_CONVERTER)
        handle = handles.of_incident(client, run.spec.name, 1)
        await run.until(lambda: runs(run, 1), "attempt 1 runs")
        await run.until_shown()
        lost = (await run.shown())["1"]
        await run.plays.lose(lost)
        await until_held(run, client)

        await run.add_controller("controller-bad", bad)
        await ends_in_time(run, "controller")
        await handle.signal(ResolveIncident.approve, Approval("ada", "go on"))
        deadline_s = time.monotonic() + PATIENCE_S
        while all(event.event_type != FAILED for event in (await handle.fetch_history()).events):
            assert time.monotonic() < deadline_s, "the bad build was never seen to fail"
            await asyncio.sleep(ASK_EVERY_S)
        assert await run.taints(lost) == []

        await run.add_controller("controller-good", good)
        await ends_in_time(run, "controller-bad")
        await run.until(lambda: recovered(run, 1), "the incident is over")
        assert run.incidents[0].evicted == (lost,)
        assert await run.taints(lost) == ["everstep.dev/quarantine"]
        told = patches(await handle.fetch_history())
        assert told.count(PATCH) == 1, "from where it took over, it goes the other build's way"


def patches(told: WorkflowHistory) -> list[str]:
    """Patches that a history has met, in order."""
    found = [event.marker_recorded_event_attributes for event in told.events]
    return [
        str(json.loads(marker.details["patch-data"].payloads[0].data)["id"])
        for marker in found
        if marker.marker_name == "core_patch"
    ]
