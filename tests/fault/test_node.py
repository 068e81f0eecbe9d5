"""What watches a node, as its DaemonSet starts it: from the kernel's line to the node's job."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import pytest
from temporalio.client import Client
from tests.fakes.kube.where import anywhere
from tests.fakes.pods import hosting
from tests.unit.test_submit import write

from everstep.agent.probes import kmsg
from everstep.core import names
from everstep.core.errors import UnobservableError
from everstep.workers.cluster.install import Installation, manifests
from everstep.workers.cluster.submit import Target, job_input, submission
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workers.starting import start_job

PATIENCE_S = 30.0


@pytest.fixture
def kernel_log() -> Path:
    """The device; skips where it may not be read and written."""
    try:
        kmsg.KmsgReader().close()
        with kmsg.KMSG.open("w") as device:
            device.write("<3>everstep test begins\n")
    except (OSError, UnobservableError) as error:
        pytest.skip(f"no kernel log here: {error}")
    return kmsg.KMSG


async def signals(client: Client, job: str) -> str:
    """What the job was told, as it stands in its history."""
    history = await client.get_workflow_handle(names.job_workflow_id(job)).fetch_history()
    told = [e.workflow_execution_signaled_event_attributes for e in history.events]
    return b"\n".join(payload.data for one in told for payload in one.input.payloads).decode()


async def test_a_kernels_line_reaches_the_job_of_the_node(
    kernel_log: Path, tmp_path: Path, temporal_address: str
) -> None:
    client = await Client.connect(temporal_address, data_converter=DATA_CONVERTER)
    job, disk = f"node-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:8]
    given = submission(write(tmp_path, name=job), Target("everstep", "controller:1"))
    await start_job(client, job_input(given, from_scratch=False))
    async with anywhere(tmp_path) as where:
        node = await where.make_node("n7")
        pod = await where.make_pod("train-0", node, running=True)
        labels = {"everstep.dev/job": job, "everstep.dev/node-senses": "true"}
        path = f"{where.pods}/{pod['metadata']['name']}"
        await where.api.patch(path, {"metadata": {"labels": labels}})
        objects = manifests(Installation(where.namespace, None, temporal_address, client.namespace))
        (daemon,) = [one for one in objects if one["kind"] == "DaemonSet"]
        extra = {
            "KUBECONFIG": str(where.of_user("everstep-node")),
            "EVERSTEP_NAMESPACE": where.namespace,
            # A test is a program, whose lines do not count otherwise.
            "EVERSTEP_KERNEL_LOG_OF_PROGRAMS": "1",
        }
        with hosting(tmp_path, objects, extra) as host:
            started = host.start(daemon["spec"]["template"], "everstep-node-x", node)
            await asyncio.to_thread(started.wait_ready)
            deadline_s = time.monotonic() + PATIENCE_S
            while disk not in (told := await signals(client, job)):
                assert time.monotonic() < deadline_s, started.log.read_text()
                # It may begin to read the log a moment after it is ready.
                with kernel_log.open("w") as device:
                    device.write(f"<3>EXT4-fs error (device {disk}): ext4_find_entry:1\n")
                await asyncio.sleep(0.3)
    assert f'"machine":"{node}"' in told
    assert '"symptom":"disk_fault"' in told
    await client.get_workflow_handle(names.job_workflow_id(job)).terminate()
