"""Which run a command is about: the folder that was named, or the only one there is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from everstep.core.errors import InputError
from everstep.workers.local import server
from everstep.workers.local.folder import RunFolder

RUNS = Path("runs")


def known_runs() -> list[RunFolder]:
    """The runs under `runs/`, newest first."""
    files = sorted(RUNS.glob("*/run.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return [RunFolder(file.parent) for file in files]


def _job_of(folder: RunFolder) -> str:
    try:
        return folder.job()
    except InputError:
        # One that cannot be read is somebody's trouble, but not of who asks for another.
        return folder.path.name


def complete_run(incomplete: str) -> list[str]:
    """Names of jobs that begin like this, for the shell."""
    names = {folder.path.name for folder in known_runs()}
    return sorted(name for name in names if name.startswith(incomplete))


RunArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN",
        help="The run's folder, or its job; the newest one under runs/ when left out.",
        autocompletion=complete_run,
    ),
]

RunOption = Annotated[
    Path | None,
    typer.Option("--run", hidden=True, help="The same; as it was given once."),
]


def find_run(path: Path | None) -> RunFolder:
    """The run's folder, or that of the newest run of a job of that name.

    Raises:
        InputError: There is neither; names the runs that there are. Or none was named, and there is
            none.
    """
    known = known_runs()
    if path is not None:
        if RunFolder(path).read_state():
            return RunFolder(path)
        for folder in known:
            if str(path) in (folder.path.name, _job_of(folder)):
                return folder
        names = ", ".join(sorted({_job_of(folder) for folder in known}))
        fix = f"Jobs with runs under {RUNS}: {names}." if names else "None lies under runs/ here."
        raise InputError(
            str(path), "is not a run's folder, nor a job of a run that is known here", fix
        )
    if not known:
        raise InputError(
            str(RUNS),
            "there is no run here",
            "Name a run's folder, or start one: everstep run SPEC.",
        )
    return known[0]


def require_running(folder: RunFolder) -> None:
    """Raise for a run that has ended.

    Raises:
        InputError: It has; says how.
    """
    if how := folder.ending():
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


def of_run(text: str, folder: RunFolder) -> str:
    """A story's text whose answers to an incident name the run, which workflows do not know.

    Args:
        text: May offer `everstep approve N` or `everstep deny N`.
        folder: Of the run.
    """
    return _ANSWER.sub(lambda found: f"{found[0]} {folder.path}", text)


_ANSWER = re.compile(r"everstep (?:approve|deny) \d+")
