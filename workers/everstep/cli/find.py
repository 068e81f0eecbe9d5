"""Which run a command is about: the folder that was named, or the only one there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from everstep.core.errors import InputError
from everstep.workers.local.folder import RunFolder

RUNS = Path("runs")

RunArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN]", help="The run's folder; the newest one under runs/ when left out."
    ),
]


def find_run(path: Path | None) -> RunFolder:
    """The run's folder.

    Raises:
        InputError: It is not a run's folder, or none was named and there is none.
    """
    if path is not None:
        if not (path / "run.json").exists():
            raise InputError(
                str(path), "is not a run's folder", "Name one that `everstep run` made."
            )
        return RunFolder(path)
    known = sorted(RUNS.glob("*/run.json"), key=lambda file: file.stat().st_mtime)
    if not known:
        raise InputError(
            str(RUNS),
            "there is no run here",
            "Name a run's folder, or start one: everstep run SPEC.",
        )
    return RunFolder(known[-1].parent)


def is_running(folder: RunFolder) -> bool:
    """Whether the process that carries the run is alive."""
    state = folder.read_state()
    return state.get("phase") == "running" and _alive(int(state.get("pid", 0)))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


def use_server_of(folder: RunFolder) -> None:
    """Let Temporal's clients in this process talk to the run's own server.

    Raises:
        InputError: The run has ended, and its server with it.
    """
    if not is_running(folder):
        raise InputError(str(folder.path), "the run has ended", "Start another: everstep run SPEC.")
    os.environ["TEMPORAL_ADDRESS"] = str(folder.read_state()["temporal"])
