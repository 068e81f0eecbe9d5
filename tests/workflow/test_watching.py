"""A watched run whose server goes first."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep.workers.local.folder import RunFolder
from tests.fakes.servers import dev_server

pytestmark = [pytest.mark.server]

TRIES_S = 3.0
"""After this long without an answer, the native client has something to say of its tries."""


def test_it_ends_with_one_line_of_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_state(job="toy", phase="running", pid=os.getpid(), started_at_s=time.time())
    with dev_server(tmp_path) as address:
        folder.write_state(temporal={"own": True, "address": address})
        watcher = subprocess.Popen(
            [sys.executable, "-m", "everstep.cli.main", "status", str(folder.path), "--watch"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watcher.stdout is not None
        assert "; starting; " in watcher.stdout.readline()
    time.sleep(TRIES_S)
    folder.write_state(phase="finished")
    ended_s = time.monotonic()
    out, err = watcher.communicate(timeout=30.0)
    # Nobody waits for an answer of whom there is no more.
    assert time.monotonic() - ended_s < 5.0
    assert err == ""
    assert [line.split("; ")[1] for line in out.splitlines()] == ["finished"]
