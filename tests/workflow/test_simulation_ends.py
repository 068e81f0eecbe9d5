"""A simulation through the workflows whose processes end in its middle, or that a person stops."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from everstep.core.errors import TransientError
from everstep.workers.simulation.server import BINARY, PATIENCE_S, skipping
from tests.unit.simulated import SPEC

SERVER, CONTROLLER = "temporal-test-server", "everstep.workers.simulation.controller"
SOON_S = 60.0

pytestmark = [pytest.mark.server, pytest.mark.slow]


@contextlib.contextmanager
def simulating(folder: Path) -> Generator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A run of months, and what it has started: a server and a controller."""
    spec = folder / "job.yaml"
    spec.write_text(SPEC.model_dump_json(exclude_none=True))
    command = [sys.executable, "-m", "everstep.cli.main", "simulate", str(spec)]
    command += ["--engine", "workflows", "--days", "3000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as run:
        try:
            yield run, _started(run.pid)
        finally:
            run.kill()


def _started(pid: int) -> list[psutil.Process]:
    deadline_s = time.monotonic() + SOON_S
    while time.monotonic() < deadline_s:
        found = {name: one for one in psutil.Process(pid).children() if (name := _name(one))}
        if len(found) == 2:
            return [found[SERVER], found[CONTROLLER]]
        time.sleep(0.05)
    raise AssertionError("neither a server nor a controller was started")


def _name(process: psutil.Process) -> str | None:
    """What it has become, once it is no longer who starts it."""
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
        if "everstep.agent.leash" not in command:
            return next((name for name in (SERVER, CONTROLLER) if name in command), None)
    return None


@pytest.mark.parametrize(
    ("killed", "told"),
    [(0, f"{SERVER} has ended (-9)"), (1, "a controller has ended by itself (-9)")],
)
def test_what_is_killed_in_the_middle_ends_it_soon(tmp_path: Path, killed: int, told: str) -> None:
    with simulating(tmp_path) as (run, started):
        started[killed].kill()
        shown, said = run.communicate(timeout=SOON_S)
    assert run.returncode == 1
    assert not shown
    assert said == f"everstep: {told}, and the simulation with it: run it again\n"
    assert not psutil.wait_procs(started, timeout=SOON_S)[1]


@pytest.mark.parametrize(
    ("number", "whole_group", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 130), (signal.SIGKILL, False, -9)],
)
def test_nothing_stays_behind(
    tmp_path: Path, number: signal.Signals, whole_group: bool, code: int
) -> None:
    with simulating(tmp_path) as (run, started):
        # A negative id is that of a group, to which Ctrl-C goes.
        os.kill(-run.pid if whole_group else run.pid, number)
        _, said = run.communicate(timeout=SOON_S)
    assert run.returncode == code
    assert said == ("everstep: stopped\n" if code > 0 else "")
    assert not psutil.wait_procs(started, timeout=SOON_S)[1]


async def test_a_server_that_does_not_start_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / BINARY
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    began_s = time.monotonic()
    with pytest.raises(TransientError, match=r"has ended \(3\)"):
        async with skipping():
            pass
    assert time.monotonic() - began_s < PATIENCE_S / 2
