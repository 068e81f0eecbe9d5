"""`everstep status`: how a run stands now."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer
from rich.table import Table

from everstep.cli.console import out
from everstep.cli.find import RunArgument, find_run, is_running, use_server_of
from everstep.cli.steps import load_steps
from everstep.core import names
from everstep.spec.load import load_spec
from everstep.workers import runtime
from everstep.workers.local.folder import RunFolder
from everstep.workflows.job import RunJob


def status_command(
    run: RunArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how a run stands: phase, step, who holds which slot."""
    folder = find_run(run)
    found = asyncio.run(describe(folder))
    if as_json:
        out.print_json(json.dumps(found))
        return
    out.print(f"[bold]{found['job']}[/] in {folder.path}: {found['phase']}")
    step = "none yet" if found["step"] is None else str(found["step"])
    out.print(f"step finished by all ranks: {step}; attempt {found['attempt']}")
    if found["ui"]:
        out.print(f"Temporal's web UI: {found['ui']}")
    if found["slots"]:
        table = Table("slot", "machine")
        for slot, machine in enumerate(found["slots"]):
            table.add_row(str(slot), machine)
        out.print(table)
        out.print(f"standbys: {', '.join(found['standbys']) or 'none'}")
        out.print(f"evicted: {', '.join(found['evicted']) or 'none'}")
    out.print(f"incidents: {found['incidents']} (everstep incidents {folder.path})")


async def describe(folder: RunFolder) -> dict[str, Any]:
    """Everything that `everstep status --json` prints."""
    state = folder.read_state()
    steps = load_steps(folder.steps)
    phase = str(state.get("phase", "unknown"))
    found: dict[str, Any] = {
        "job": load_spec(folder.spec).name if folder.spec.exists() else folder.path.name,
        "phase": phase if phase != "running" or is_running(folder) else "cut off",
        "step": steps[-1].step if steps else None,
        "attempt": steps[-1].attempt if steps else 0,
        "ui": state.get("ui", "") if is_running(folder) else "",
        "slots": [],
        "standbys": [],
        "evicted": [],
        "incidents": len(list(folder.incidents.glob("*.json"))),
    }
    if is_running(folder) and state.get("temporal") is not None:
        use_server_of(folder)
        client = await runtime.connect(5.0)
        handle = client.get_workflow_handle_for(RunJob.run, names.job_workflow_id(found["job"]))
        status = await handle.query(RunJob.status)
        found["phase"] = status.phase
        found["incidents"] = status.incidents
        found["standbys"] = [info.machine for info in status.pool]
        found["evicted"] = list(status.evicted)
        if status.assignment is not None:
            found["slots"] = status.assignment.machine_names()
            found["attempt"] = status.assignment.attempt
    return found
