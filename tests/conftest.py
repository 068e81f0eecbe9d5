"""Fixtures that several kinds of tests share."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.workers.local import ports, server

HOST = "127.0.0.1"


def free_port() -> int:
    return ports.free_port(HOST)


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


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Temporal server, configured as a local run's, for the whole session."""
    database: Path = tmp_path_factory.mktemp("temporal") / "temporal.db"
    port = free_port()
    process = subprocess.Popen(
        server.command(server.find_binary(), database, HOST, port, None),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_port(port)
        yield f"{HOST}:{port}"
    finally:
        process.terminate()
        process.wait(10)
