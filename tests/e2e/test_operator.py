"""What a person does to a run: looks at it, adds machines, stops and kills it at any moment."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Outcome, Rung
from everstep.workers.local import server
from tests.conftest import free_port
from tests.e2e.conftest import STEPS
from tests.e2e.local import (
    SMALL,
    Finished,
    assert_nothing_left,
    clean_environment,
    command,
    everstep,
    processes_of,
    start,
    until,
    write_spec,
    write_waiter,
)
from tests.fakes.servers import HOST, wait_for_port

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(300)]

STOPPED = 130

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

STOP_WITHIN_S = 12.0
"""Longer than the 10 s that are promised, as a test's machine may be busy."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


class Live:
    """A run under way."""

    def __init__(self, spec: Path, folder: Path, *options: str, **environment: str) -> None:
        self.folder = folder
        self.process = start(spec, folder, *options, **environment)
        self._shared_before = set(SHARED_MEMORY.iterdir())

    @property
    def state(self) -> dict[str, Any]:
        file = self.folder / "run.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def processes(self, word: str) -> list[psutil.Process]:
        """Processes of the run that have this word in their command line."""
        found: list[psutil.Process] = []
        for process in processes_of(self.folder):
            with suppress(psutil.NoSuchProcess):
                if any(word in part for part in process.cmdline()):
                    found.append(process)
        return found

    def up(self, attempt: int = 1) -> bool:
        """Whether both ranks of a waiter run."""
        ours = self.state.get("pid") == self.process.pid
        output = self.folder / "output"
        return ours and all((output / f"up-{rank}-{attempt}").exists() for rank in (0, 1))

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        until(lambda: condition() or self.process.poll() is not None, what)
        assert self.process.poll() is None, f"ended before: {what}\n{self.process.communicate()}"

    def status(self) -> dict[str, Any]:
        return dict(json.loads(everstep("status", self.folder, "--json").stdout or "{}"))

    def incident(self) -> IncidentRecord | None:
        """The first incident as it was archived last."""
        records = Finished(self.folder, 0, "", "").incidents
        return records[0] if records else None

    def held(self) -> bool:
        record = self.incident()
        return record is not None and record.outcome is Outcome.HELD

    def end(self) -> Finished:
        stdout, stderr = self.process.communicate(timeout=120)
        return Finished(self.folder, self.process.returncode, stdout, stderr)

    def check_stops(self, *signals: int) -> None:
        """It ends in time with its exit code, and leaves nothing."""
        began_s = time.monotonic()
        for number in signals:
            self.process.send_signal(number)
        done = self.end()
        assert time.monotonic() - began_s < STOP_WITHIN_S
        assert done.code == STOPPED, done.explain()
        assert "Traceback" not in done.stderr.rpartition("everstep:")[2]
        assert processes_of(self.folder) == []
        assert set(SHARED_MEMORY.iterdir()) <= self._shared_before


@contextmanager
def live(spec: Path, folder: Path, *options: str, **environment: str) -> Generator[Live]:
    run = Live(spec, folder, *options, **environment)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
        for process in processes_of(folder):
            process.kill()


def handles_signals(run: Live) -> bool:
    """Whether the command has come far enough to have handlers for both signals."""
    lines = Path(f"/proc/{run.process.pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return all(caught >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM))


def kept(run: Live) -> bool:
    """Whether both ranks run, and the folder tells that they do."""
    file = run.folder / "standing.json"
    return run.up() and file.exists() and json.loads(file.read_text())["slots"] == ["m0", "m1"]


def check_tells(run: Live, ending: str) -> dict[str, Any]:
    """All that was known is told of a run that did not end by itself: its report."""
    report = everstep("report", run.folder, "--json")
    assert report.returncode == 0, report.stderr
    found: dict[str, Any] = json.loads(report.stdout)
    assert found["ending"] == ending
    assert everstep("updates", run.folder).stdout == "no update was asked for\n"
    assert run.status()["slots"] == ["m0", "m1"]
    return found


def kill_a_rank(run: Live) -> None:
    run.processes("waiter.sh")[0].kill()


def agents(run: Live) -> list[psutil.Process]:
    return run.processes("everstep.workers.agent")


MOMENTS: dict[str, tuple[Callable[[Live], object], tuple[int, ...]]] = {
    "while the command loads": (handles_signals, (signal.SIGINT,)),
    "before the server is up": (lambda run: run.processes("start-dev"), (signal.SIGTERM,)),
    "while machines gather": (agents, (signal.SIGINT,)),
    "in training": (kept, (signal.SIGINT, signal.SIGINT, signal.SIGTERM)),
}


BEFORE_TRAINING = ("before the server is up", "while machines gather")


@pytest.mark.parametrize(
    "moment",
    [pytest.param(m, marks=pytest.mark.soak if m in BEFORE_TRAINING else ()) for m in MOMENTS],
)
def test_stopped(moment: str, tmp_path: Path) -> None:
    condition, signals = MOMENTS[moment]
    with live(write_waiter(tmp_path), tmp_path / "run") as run:
        run.wait_until(lambda: condition(run), moment)
        run.check_stops(*signals)
        if moment == "in training":
            check_tells(run, "was stopped")


def test_stopped_in_a_recovery(tmp_path: Path) -> None:
    with live(write_waiter(tmp_path), tmp_path / "run") as run:
        run.wait_until(run.up, "both ranks run")
        kill_a_rank(run)
        run.wait_until(lambda: not run.processes("waiter.sh"), "the ranks were stopped")
        run.check_stops(signal.SIGTERM)


def test_stopped_while_it_ends(tmp_path: Path) -> None:
    """What the job made stays; the exit code tells a script that a person wanted no more."""
    with live(write_waiter(tmp_path), tmp_path / "run") as run:
        run.wait_until(run.up, "both ranks run")
        before = agents(run)
        (run.folder / "output" / "end").touch()
        run.wait_until(lambda: not all(agent.is_running() for agent in before), "an agent ended")
        run.check_stops(signal.SIGINT, signal.SIGINT)
        assert run.state["phase"] == "finished"


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(agents, id="gathering", marks=pytest.mark.soak),
        pytest.param(kept, id="training"),
    ],
)
def test_killed(condition: Callable[[Live], object], tmp_path: Path) -> None:
    """Even what the ranks started goes; a new run takes the folder when it is told to."""
    spec = write_waiter(tmp_path)
    with live(spec, tmp_path / "run") as run:
        run.wait_until(lambda: condition(run), "it is there")
        run.process.kill()
        run.process.communicate()
        assert_nothing_left(run.folder)
    assert run.status().get("phase") == "cut off"
    if condition is kept:
        check_tells(run, "was cut off")
    again = everstep("run", spec, "--run-dir", run.folder)
    assert again.returncode == 2
    assert "a run that was cut off is there" in again.stderr
    assert "--fresh" in again.stderr


def watch_on_a_terminal(folder: Path) -> None:
    """It draws on a screen of its own, and a person's Ctrl-C gives the terminal back."""
    ours, theirs = pty.openpty()
    environment = clean_environment() | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    arguments = command("status", folder, "--watch")
    watcher = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    shown = ""

    def read() -> str:
        nonlocal shown
        # Once the other side is closed there is nothing to read any more, which is an error here.
        with suppress(OSError):
            if select.select([ours], [], [], 0.0)[0]:
                shown += os.read(ours, 2**16).decode(errors="replace")
        return shown

    try:
        until(lambda: "standbys: none" in read(), "it draws", patience_s=30.0)
        assert ENTER_SCREEN in shown
        assert LEAVE_SCREEN not in shown
        watcher.send_signal(signal.SIGINT)
        until(lambda: LEAVE_SCREEN in read() and watcher.poll() is not None, "it leaves")
    finally:
        watcher.kill()
        watcher.wait()
        os.close(ours)
    assert watcher.returncode == STOPPED
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)


def test_looked_at_while_it_lives(tmp_path: Path) -> None:
    spec, folder = write_waiter(tmp_path), tmp_path / "run"
    with live(spec, folder) as run:
        run.wait_until(lambda: agents(run), "an agent starts")
        slow = agents(run)[0]
        slow.suspend()
        run.wait_until(lambda: "temporal" in run.state, "its server is up")
        run.wait_until(lambda: run.status().get("phase") == "gathering machines", "it gathers")
        assert "gathering machines" in everstep("status", folder).stdout
        slow.resume()
        run.wait_until(run.up, "both ranks run")
        run.wait_until(lambda: run.status().get("phase") == "training", "it trains")
        assert run.status()["slots"] == ["m0", "m1"]
        for options in ([], ["--fresh"]):
            second = everstep("run", spec, "--run-dir", folder, *options)
            assert second.returncode == 2
            assert f"a run is under way there (process {run.process.pid})" in second.stderr
        watch_on_a_terminal(folder)
        told = subprocess.Popen(
            command("status", folder, "--watch"),
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        shown = everstep("incident", "show", "7", folder)
        assert shown.returncode == 2
        assert "there is none of that number" in shown.stderr
        assert "Known: none" in shown.stderr
        stacks = everstep("stacks", folder, "--save", tmp_path / "stacks")
        assert stacks.returncode == 0
        # The ranks are shell scripts.
        assert "1: rank 0, no_answer: process" in stacks.stdout
        assert {file.name for file in (tmp_path / "stacks").iterdir()} == {
            "rank-0.json",
            "rank-1.json",
        }
        assert everstep("machine", "add", folder).returncode == 0
        run.wait_until((folder / "machines" / "m2" / "zygote.log").exists, "it was started")
        run.wait_until(lambda: run.status()["standbys"] == ["m2"], "the new machine is a standby")
        (folder / "output" / "end").touch()
        assert run.end().code == 0
        lines = told.communicate(timeout=60)[0].splitlines()
    assert told.returncode == 0
    assert "; training; step none yet; attempt 1" in lines[0]
    assert "; finished;" in lines[-1]
    assert run.status().get("phase") == "finished"
    assert everstep("machine", "add", folder).returncode == 2
    refused = everstep("run", spec, "--run-dir", folder)
    assert refused.returncode == 2
    assert "a run that finished is there" in refused.stderr
    (tmp_path / "code" / "waiter.sh").write_text("exit 0\n")
    assert everstep("run", spec, "--run-dir", folder, "--fresh").returncode == 0


def test_hold_names_what_is_missing_and_ends_when_it_comes(
    tmp_path: Path, small_undisturbed: dict[int, str]
) -> None:
    folder = tmp_path / "run"
    spec = write_spec(tmp_path, STEPS, 0, **SMALL)
    with live(spec, folder, "--fault", "machine_lost@20:m1") as run:
        run.wait_until(run.held, "the incident is held")
        missing = "1 machine missing for slot 1 (evicted: m1; no standby is left)"
        found = run.status()
        assert found["phase"] == "incident 1 held"
        assert found["missing"].startswith(missing)
        assert found["slots"] == ["m0", None]
        assert missing in everstep("status", folder).stdout
        assert "held" in everstep("incidents", folder).stdout
        assert missing in everstep("incident", "show", "1", folder).stdout
        added = everstep("machine", "add", folder)
        assert added.returncode == 0, added.stderr
        done = run.end()
    assert done.code == 0, done.explain()
    assert done.digests() == small_undisturbed
    [record] = done.incidents
    assert (record.outcome, record.replacements) == (Outcome.RECOVERED, ("m2",))
    assert record.lost_steps <= 1
    assert_nothing_left(folder)


def test_trainer_that_always_fails_ends_in_a_hold_with_its_error(tmp_path: Path) -> None:
    spec = write_waiter(
        tmp_path, command=["env", "python3", "broken.py"], safety={"max_evicted_ratio": 0.5}
    )
    (tmp_path / "code" / "broken.py").write_text("import no_such_module\n")
    with live(spec, tmp_path / "run") as run:
        run.wait_until(run.held, "the incident is held")
        record = run.incident()
        assert record is not None
        assert [climb.rung for climb in record.climbs] == [Rung.REATTEMPT]
        shown = everstep("incident", "show", "1", run.folder).stdout
        assert "No module named" in shown
        assert "no_such_module" in shown
        assert "held:" in shown
        attempts = len(list((run.folder / "machines").glob("*/attempt-*")))
        run.check_stops(signal.SIGTERM)
        assert check_tells(run, "was stopped")["spent"]["held"] > 0
    assert attempts <= 4


@contextmanager
def bare_server(folder: Path) -> Generator[str]:
    """A Temporal server that knows nothing of us."""
    port = free_port()
    process = subprocess.Popen(
        [
            server.find_binary(), "server", "start-dev", "--headless", "--ip", HOST,
            "--port", str(port), "--db-filename", str(folder / "elsewhere.db"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_port(port)
        yield f"{HOST}:{port}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.soak
def test_server_of_somebody_else(tmp_path: Path) -> None:
    """Two runs of one job, one after the other, both with an incident, on a server that stays."""
    spec, folder = write_waiter(tmp_path), tmp_path / "run"
    with bare_server(tmp_path) as address:
        for attempt in ("first", "second"):
            with live(spec, folder, "--fresh", TEMPORAL_ADDRESS=address) as run:
                run.wait_until(run.up, f"both ranks of the {attempt} run are up")
                assert run.processes("start-dev") == []
                kill_a_rank(run)
                run.wait_until(partial(run.up, 2), "both ranks are up again")
                assert run.status().get("phase") == "incident 1 open"
                run.check_stops(signal.SIGINT)
        assert not (folder / "temporal.db").exists()


@pytest.mark.soak
def test_two_runs_side_by_side(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    specs = [write_waiter(folder) for folder in folders]
    with (
        live(specs[0], folders[0] / "run") as one,
        live(specs[1], folders[1] / "run") as two,
    ):
        one.wait_until(one.up, "the first runs")
        two.wait_until(two.up, "the second runs")
        assert one.state["temporal"] != two.state["temporal"]
        for run in (one, two):
            (run.folder / "output" / "end").touch()
        assert [one.end().code, two.end().code] == [0, 0]
