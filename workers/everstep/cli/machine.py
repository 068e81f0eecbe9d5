"""`everstep machine ...`: give a local run another machine, or one back."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Annotated

import typer

from everstep.cli.asking import connect
from everstep.cli.console import out
from everstep.cli.find import RunArgument, find_run, require_running, use_server_of
from everstep.core.errors import InputError, TransientError
from everstep.workers import handles
from everstep.workflows.job import RunJob

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)

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
    out.print(
        f"A machine was added to {folder.path}. It starts its agent, loads torch and is tested:"
        " see everstep status for when it is ready."
    )


@app.command("admit")
def admit_command(
    name: Annotated[str, typer.Argument(help="Name of the machine.")], run: RunArgument = None
) -> None:
    """Let a machine join again that was evicted too often for its own word to count."""
    folder = find_run(run)
    require_running(folder)
    use_server_of(folder)
    job = folder.job()

    async def admit() -> None:
        client = await connect(PATIENCE_S)
        handle = handles.of_job(client, job)
        status = await handle.query(RunJob.status)
        known = [history.machine for history in status.machines]
        if name not in known:
            evicted = ", ".join(known) or "none"
            raise InputError(f"machine {name}", "was not evicted", f"Evicted so far: {evicted}.")
        await handle.signal(RunJob.admit, name)

    asyncio.run(admit())
    out.print(f"{name} may join {job} again.")
