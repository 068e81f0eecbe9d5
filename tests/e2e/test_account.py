"""A whole run with six incidents and a dead controller: its report is what happened."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowHistory

from everstep.core import names
from everstep.workers.local import ports, server
from everstep.workers.steps import load_steps
from tests.e2e.local import assert_nothing_left, everstep, run, write_spec
from tests.fakes.servers import HOST, wait_for_port
from tests.workflow import histories

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.soak, pytest.mark.timeout(400)]

STEPS = 80

FAULTS = (
    "rank_killed@10:5",
    "machine_lost@20:m1",
    "transient@30:m2",
    "rank_killed@40:0",
    "machine_lost@50:m3",
    "controller_killed@50+0.3",
    "rank_killed@65:7",
)


async def connect(address: str) -> Client:
    """Its port is open a little before it serves."""
    while True:
        with contextlib.suppress(RuntimeError):
            return await Client.connect(address)
        await asyncio.sleep(0.1)


def fetch(database: Path, identifiers: Sequence[str]) -> list[WorkflowHistory]:
    """Histories of an ended run, from a server on its database."""
    port = ports.free_port(HOST)
    process = subprocess.Popen(
        server.command(server.find_binary(), database, HOST, port, None),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    async def all_of_them() -> list[WorkflowHistory]:
        async with asyncio.timeout(60):
            client = await connect(f"{HOST}:{port}")
            handles = [client.get_workflow_handle(one) for one in identifiers]
            return [await handle.fetch_history() for handle in handles]

    try:
        wait_for_port(port)
        return asyncio.run(all_of_them())
    finally:
        process.terminate()
        process.wait(10)


def test_six_incidents_and_a_dead_controller(tmp_path: Path) -> None:
    command = ["python", "train.py", "--steps", str(STEPS), "--step-time-s", "0.25"]
    folder = tmp_path / "run"
    spec = write_spec(tmp_path, STEPS, 2, command=command)
    done = run(spec, folder, *FAULTS, patience_s=350.0)
    assert done.code == 0, done.explain()
    assert len(done.incidents) == 6, done.explain()
    assert_nothing_left(folder)
    found = json.loads(everstep("report", folder, "--json").stdout)
    wall_s = found["to_s"] - found["from_s"]
    assert sum(found["spent"].values()) == pytest.approx(wall_s, abs=1e-6)
    incidents = [names.incident_workflow_id("gpt", number) for number in range(1, 7)]
    job, *others = fetch(folder / "temporal.db", [names.job_workflow_id("gpt"), *incidents])
    from_s, to_s = histories.job_times(job)
    assert wall_s == pytest.approx(to_s - from_s, abs=1.0)
    told = [histories.incident(history) for history in others]
    histories.compare(found, told, load_steps(folder / "steps.jsonl"), near_s=1.0)
    assert {one.mechanism for one in told} == {"reattempt", "evict"}
