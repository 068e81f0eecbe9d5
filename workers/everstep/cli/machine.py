"""`everstep machine ...`: give a local run another machine."""

from __future__ import annotations

import time
import uuid

import typer

from everstep.cli.console import out
from everstep.cli.find import RunArgument, find_run, require_running
from everstep.core.errors import TransientError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

PATIENCE_S = 10.0


@app.callback()
def _group() -> None:
    """Machines of a local run."""


@app.command("add")
def add_command(run: RunArgument = None) -> None:
    """Add one machine to a running local cluster; it becomes a standby, or fills a waiting slot."""
    folder = find_run(run)
    require_running(folder)
    request = folder.requests / uuid.uuid4().hex
    request.touch()
    deadline_s = time.monotonic() + PATIENCE_S
    while request.exists():
        if time.monotonic() > deadline_s:
            request.unlink(missing_ok=True)
            raise TransientError(f"the run in {folder.path} does not take requests; try again")
        time.sleep(0.05)
    out.print(f"A machine was added to {folder.path}; it is ready within seconds.")
