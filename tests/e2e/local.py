"""Local runs by the command that a user types, and what they left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from everstep.activities.archive import load_incidents
from everstep.core.record import IncidentRecord

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = EXAMPLES / "gpt"
PATIENCE_S = 240.0


def write_spec(folder: Path, steps: int, standbys: int, **changes: object) -> Path:
    """A spec for the reference trainer on 4 machines of 2 ranks, quick to close its incidents."""
    spec: dict[str, object] = {
        "name": "gpt",
        "command": ["python", "train.py", "--steps", str(steps)],
        "code": {"directory": str(EXAMPLE)},
        "machines": 4,
        "gpus_per_machine": 2,
        "parallelism": {"tp": 2, "pp": 2, "dp": 2, "order": "tp-pp-dp"},
        "standby": {"count": standbys, "self_check": False, "refill": False},
        "ladder": {"probation_steps": 1, "probation_s": 0.2},
        "safety": {"max_evicted_ratio": 1.0},
        **changes,
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(spec))  # pyright: ignore[reportUnknownMemberType]
    return file


SMALL: dict[str, object] = {
    "machines": 2,
    "gpus_per_machine": 2,
    "parallelism": {"tp": 2, "pp": 1, "dp": 2, "order": "tp-pp-dp"},
}
"""For a test in which it does not matter how many ranks there are."""


@dataclass
class Finished:
    """A run that has ended."""

    folder: Path
    code: int
    stdout: str
    stderr: str

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "run.json").read_text()))

    @property
    def standing(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "standing.json").read_text()))

    @property
    def incidents(self) -> list[IncidentRecord]:
        return load_incidents(self.folder / "incidents")

    def digests(self) -> dict[int, str]:
        found = [json.loads(f.read_text()) for f in (self.folder / "output").glob("digest-*.json")]
        return {int(content["rank"]): str(content["sha256"]) for content in found}

    def effects(self, effect: str) -> list[dict[str, Any]]:
        """What all agents did, from their journals."""
        return [
            entry
            for journal in sorted((self.folder / "machines").glob("*/journal.jsonl"))
            for entry in map(json.loads, journal.read_text().splitlines())
            if entry["effect"] == effect
        ]

    def evictions(self) -> list[str]:
        file = self.folder / "evictions.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        done = [json.loads(line) for line in lines]
        return [str(entry["machine"]) for entry in done if entry["effect"] == "evict"]

    def starts_by_machine(self) -> Counter[tuple[str, int]]:
        """How often each machine really started each attempt: once, whoever was killed."""
        return Counter(
            (journal.parent.name, int(entry["attempt"]))
            for journal in (self.folder / "machines").glob("*/journal.jsonl")
            for entry in map(json.loads, journal.read_text().splitlines())
            if entry["effect"] == "started"
        )

    def explain(self) -> str:
        return f"exit code {self.code}\n{self.stdout}\n{self.stderr}"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "everstep.cli.main", *map(str, arguments)]


def run(spec: Path, folder: Path, *faults: str, patience_s: float = PATIENCE_S) -> Finished:
    """Run to the end; whatever happens, nothing of the run stays behind."""
    options = [part for fault in faults for part in ("--fault", fault)]
    process = start(spec, folder, *options)
    try:
        stdout, stderr = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=30)
        raise AssertionError(f"not done in {patience_s} s\n{stdout}\n{stderr}") from None
    return Finished(folder, process.returncode, stdout, stderr)


def start(spec: Path, folder: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("run", spec, "--run-dir", folder, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment() | environment,
        cwd=folder.parent,
    )


def clean_environment() -> dict[str, str]:
    """Ours, without what names a Temporal server."""
    return {k: v for k, v in os.environ.items() if not k.startswith("TEMPORAL_")}


def everstep(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call the command and wait for its end, which may take a while on a busy machine."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        env=clean_environment() | environment,
        timeout=60,
        check=False,
    )


def until(condition: Callable[[], object], what: str, patience_s: float = 120.0) -> None:
    """Poll until something is so."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {patience_s} s: {what}"
        # Looking through all processes takes a while itself.
        time.sleep(0.1)


WAITER = """
touch "$EVERSTEP_OUTPUT_DIR/up-$RANK-$EVERSTEP_ATTEMPT"
sleep 3000 &
while [ ! -e "$EVERSTEP_OUTPUT_DIR/end" ]; do sleep 0.05; done
kill $!
"""
"""A job without torch and without our library, which ends when it is told to. What it starts is not
a child of ours, as with a trainer inside a shell script."""


def write_waiter(folder: Path, **changes: object) -> Path:
    """A spec for a job on two machines of one rank that starts at once and waits."""
    code = folder / "code"
    code.mkdir()
    (code / "waiter.sh").write_text(WAITER)
    fields = {
        "name": "waiter",
        "command": ["sh", "waiter.sh"],
        "code": {"directory": "code"},
        "machines": 2,
        "gpus_per_machine": 1,
        "parallelism": {"dp": 2},
        **changes,
    }
    return write_spec(folder, 0, 0, **fields)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process that was started for a run, by its environment or its command line."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            marks = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid != os.getpid() and any(str(folder) in mark for mark in marks):
            found.append(process)
    return found


def assert_nothing_left(folder: Path, patience_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + patience_s
    while left := processes_of(folder):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"left behind: {[' '.join(p.cmdline()) for p in left]}")
        time.sleep(0.05)
