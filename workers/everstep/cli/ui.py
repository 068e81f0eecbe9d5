"""`everstep ui`: look at an ended run in Temporal's web UI."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from everstep.cli.console import err
from everstep.cli.find import RunArgument, find_run
from everstep.core.errors import InputError
from everstep.workers.local import ports, server
from everstep.workers.local.connecting import PREFERRED_UI_PORT
from everstep.workers.local.ports import HOST


def ui_command(
    run: RunArgument = None,
    ui_port: Annotated[int | None, typer.Option(help="Port of the web UI.")] = None,
) -> None:
    """Serve an ended run's Temporal database until Ctrl-C; a live run prints its own address."""
    folder = find_run(run)
    if folder.is_running():
        address = folder.read_state().get("ui", "")
        raise InputError(str(folder.path), "the run is live", f"Its web UI: {address}")
    if not folder.database.exists():
        raise InputError(
            str(folder.path), "has no database of its own", "Look at the server that it used."
        )
    port = ports.wanted_port(HOST, ui_port, "--ui-port", preferred=PREFERRED_UI_PORT)
    command = server.command(
        server.find_binary(), folder.database.absolute(), HOST, ports.free_port(HOST), port
    )
    err.print(f"http://{HOST}:{port}/namespaces/{server.NAMESPACE}/workflows  (Ctrl-C ends it)")
    os.execv(command[0], command)  # noqa: S606 - no shell is meant
