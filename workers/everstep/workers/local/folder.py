"""The run's folder: what lies where, and who may write to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from everstep.core.errors import InputError

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside one run's folder."""

    path: Path

    @property
    def spec(self) -> Path:
        """A copy of the spec as it was when the run began."""
        return self.path / "spec.yaml"

    @property
    def secret(self) -> Path:
        """The job's secret, readable by its owner only."""
        return self.path / "secret"

    @property
    def state(self) -> Path:
        """What the run is and how it stands, as JSON."""
        return self.path / "run.json"

    @property
    def partial_state(self) -> Path:
        """The next state while it is being written."""
        return self.state.with_suffix(".partial")

    @property
    def standing(self) -> Path:
        """How the job stood when it was asked last, as JSON."""
        return self.path / "standing.json"

    @property
    def database(self) -> Path:
        """The Temporal server's database."""
        return self.path / "temporal.db"

    @property
    def code(self) -> Path:
        """Code versions, one folder each."""
        return self.path / "code"

    @property
    def logs(self) -> Path:
        """Logs of our own processes."""
        return self.path / "logs"

    @property
    def machines(self) -> Path:
        """One folder a machine: its journal, and its ranks' logs by attempt."""
        return self.path / "machines"

    @property
    def incidents(self) -> Path:
        """Incident records, one file each."""
        return self.path / "incidents"

    @property
    def output(self) -> Path:
        """Where the user's script may leave what it makes."""
        return self.path / "output"

    @property
    def steps(self) -> Path:
        """When all ranks had finished which step, one JSON line each."""
        return self.path / "steps.jsonl"

    @property
    def evictions(self) -> Path:
        """The cluster's journal: one JSON line an eviction."""
        return self.path / "evictions.jsonl"

    @property
    def evidence(self) -> Path:
        """Stack dumps by digest, unless the agents are told another place."""
        return self.path / "evidence"

    @property
    def metrics(self) -> Path:
        """Where Prometheus finds the metrics of our processes, if they serve any."""
        return self.path / "metrics"

    @property
    def requests(self) -> Path:
        """Requests for further machines, one file each, taken by the running cluster."""
        return self.path / "requests"

    def read_state(self) -> dict[str, Any]:
        """What `write_state` wrote last; empty before the first time.

        Raises:
            InputError: It cannot be read, or nobody of ours wrote it.
        """
        return _read(self.state)

    def read_standing(self) -> dict[str, Any]:
        """What `write_standing` wrote last; empty before the first time.

        Raises:
            InputError: It cannot be read.
        """
        return _read(self.standing)

    def job(self) -> str:
        """Name of the job."""
        return str(self.read_state().get("job", self.path.name))

    def ending(self) -> str:
        """How the run ended, to be put after "the run"; empty while it is under way."""
        # In this order: a run that ends in between has ended, and was not cut off.
        running = self.is_running()
        phase = str(self.read_state().get("phase", "ended"))
        return phase if phase != "running" else "" if running else "was cut off"

    def is_running(self) -> bool:
        """Whether the process that carries the run is alive; in a cluster, whether the job runs."""
        state = self.read_state()
        if state.get("phase") != "running":
            return False
        if state.get("in_cluster"):
            return True
        try:
            began_at_s = psutil.Process(int(state["pid"])).create_time()
        except psutil.NoSuchProcess:
            return False
        # A later process may have been given the number of one that is gone.
        return began_at_s <= float(state["started_at_s"])

    def discard(self) -> None:
        """Delete everything that the run made, and the folder if nothing else is in it."""
        _empty(self)
        (self.path / "lock").unlink()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def write_state(self, **changes: object) -> None:
        """Change some fields of the state, as a whole or not at all."""
        _write(self.state, {**self.read_state(), **changes})

    def write_standing(self, values: dict[str, Any]) -> None:
        """Keep how the job stands, as a whole or not at all."""
        _write(self.standing, values)


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            str(file), f"cannot be read: {error}", "Name a folder of `everstep run`."
        ) from error


def _write(file: Path, values: dict[str, Any]) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(values, indent=2) + "\n")
    partial.replace(file)


def claim(path: Path, fresh: bool) -> tuple[RunFolder, int]:
    """Make a folder for a new run and take hold of it.

    Args:
        path: The folder; made when missing.
        fresh: Whether to delete a finished run that lies there.

    Returns:
        The folder, and a descriptor whose lock lasts as long as this process.

    Raises:
        InputError: Another run uses it, or an ended run lies there and `fresh` is false, or it is
            somebody else's folder, or it cannot be written. The folder is as it was then.
    """
    folder = RunFolder(path)
    _refuse_strange_files(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return _claim(folder, lock, fresh), lock
    except OSError as error:
        raise InputError(
            str(path), error.strerror or str(error), "Choose another with --run-dir."
        ) from error


def _claim(folder: RunFolder, lock: int, fresh: bool) -> RunFolder:
    path = folder.path
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        pid = folder.read_state().get("pid", "?")
        raise InputError(
            str(path),
            f"a run is under way there (process {pid})",
            f"Watch it: everstep status {path}. Stop it: kill {pid}. "
            "Or choose another folder with --run-dir.",
        ) from None
    if folder.state.exists() and not fresh:
        os.close(lock)
        ended = folder.read_state().get("phase", "ended")
        raise InputError(
            str(path),
            f"a run that {ended if ended != 'running' else 'was cut off'} is there",
            f"Look at it: everstep incidents {path}. "
            "Replace it: --fresh. Keep it: choose another folder with --run-dir.",
        )
    _empty(folder)
    # First and, in `_empty`, last: whatever else lies beside it is a run's.
    folder.write_state(pid=os.getpid(), phase="running", started_at_s=time.time())
    for directory in (folder.logs, folder.machines, folder.incidents, folder.output):
        directory.mkdir()
    folder.requests.mkdir()
    descriptor = os.open(folder.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, secrets.token_hex(SECRET_BYTES).encode())
    os.close(descriptor)
    return folder


def _refuse_strange_files(folder: RunFolder) -> None:
    """Raise for a folder that holds what no run makes, before anything in it is touched.

    A run begins with its state, so beside none the names of a run's files are somebody else's.
    """
    ours = {"lock", folder.partial_state.name}
    if "pid" in folder.read_state():
        ours |= _names(folder)
    path = folder.path
    try:
        strange = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(
            str(path), error.strerror or str(error), "Choose another with --run-dir."
        ) from error
    if strange:
        raise InputError(
            str(path),
            f"holds files that no run made ({', '.join(strange[:3])})",
            "Choose an empty or new folder with --run-dir.",
        )


def _names(folder: RunFolder) -> set[str]:
    """Names of everything that a run makes in its folder."""
    ours = {
        entry.name
        for entry in (
            folder.spec, folder.secret, folder.state, folder.code, folder.logs, folder.machines,
            folder.incidents, folder.output, folder.steps, folder.evictions, folder.requests,
            folder.metrics, folder.evidence, folder.standing,
            folder.standing.with_suffix(".partial"),
        )
    }  # fmt: skip
    ours |= {f"{folder.database.name}{tail}" for tail in ("", "-wal", "-shm", ".lock")}
    return ours


def _empty(folder: RunFolder) -> None:
    """Delete a run's files but its lock; there are no others."""
    for entry in folder.path.iterdir():
        if entry.name in ("lock", folder.state.name):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    folder.state.unlink(missing_ok=True)
