"""Which run a command is about: the folder that was named, or the only one there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from everstep.core.errors import InputError
from everstep.workers.local import server
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
        if not RunFolder(path).read_state():
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


def require_running(folder: RunFolder) -> None:
    """Raise for a run that has ended.

    Raises:
        InputError: It has; says how.
    """
    if not folder.is_running():
        phase = folder.read_state().get("phase", "ended")
        how = "was cut off" if phase == "running" else phase
        raise InputError(
            str(folder.path), f"the run is over ({how})", "Start another: everstep run SPEC."
        )


def use_server_of(folder: RunFolder) -> None:
    """Let Temporal's clients in this process talk to the run's server.

    Raises:
        InputError: The run has ended, and its server with it, or it has none yet.
    """
    require_running(folder)
    found = folder.read_state().get("temporal")
    if found is None:
        raise InputError(
            str(folder.path), "the run is only just starting", "Try again in a second."
        )
    if found["own"]:
        server.use(found["address"])
    else:
        # Keys and certificates stay where the person keeps them.
        os.environ["TEMPORAL_ADDRESS"] = found["address"]
        os.environ["TEMPORAL_NAMESPACE"] = found["namespace"]
