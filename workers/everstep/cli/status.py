"""`everstep status`: how a run stands now."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from temporalio.service import RPCError, RPCStatusCode

from everstep.cli.console import out
from everstep.cli.find import RunArgument, find_run, use_server_of
from everstep.cli.steps import load_steps
from everstep.core import names
from everstep.core.errors import TransientError
from everstep.core.vocabulary import Outcome
from everstep.workers import runtime
from everstep.workers.local.folder import RunFolder
from everstep.workflows import story
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob

ANSWER_PATIENCE_S = 5.0

NOTES_SHOWN = 5

_BEFORE_TRAINING = ("starting", "gathering machines")


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
    print_status(folder, found)


def print_status(folder: RunFolder, found: dict[str, Any]) -> None:
    """What `describe` found, for a person."""
    where = escape(str(folder.path))
    out.print(f"[bold]{found['job']}[/] in {where}: {found['phase']}")
    if found["missing"]:
        out.print(f"waits for: {escape(found['missing'])}")
    if number := found["active_incident"]:
        out.print(f"what led to it: everstep incident show {number} --run {where}")
    step = "none yet" if found["step"] is None else str(found["step"])
    out.print(f"step finished by all ranks: {step}; attempt {found['attempt']}")
    if found["ui"]:
        out.print(f"Temporal's web UI: {found['ui']}")
    _print_machines(found)
    out.print(f"incidents: {found['incidents']} (everstep incidents {where})")
    for alert in found["noted"]:
        out.print(f"noted at {story.clock(alert['at_s'])}: {escape(alert['detail'])}")
    for at_s, text in found["notes"][-NOTES_SHOWN:]:
        out.print(f"{story.clock(at_s)} {escape(text)}")


def _print_machines(found: dict[str, Any]) -> None:
    if found["slots"]:
        table = Table("slot", "machine")
        for slot, machine in enumerate(found["slots"]):
            table.add_row(str(slot), machine or "vacant")
        out.print(table)
    if found["phase"] in _BEFORE_TRAINING:
        out.print(f"machines that are ready: {', '.join(found['standbys']) or 'none yet'}")
    elif found["slots"]:
        out.print(f"standbys: {', '.join(found['standbys']) or 'none'}{standby_text(found)}")
        out.print(f"evicted: {', '.join(found['evicted']) or 'none'}")
    for machine in found["barred"]:
        out.print(f"{machine} was evicted too often to join by itself: everstep machine admit")


def standby_text(found: dict[str, Any]) -> str:
    """How many there should be and why, and who is on the way."""
    plan = found["standby_plan"]
    if plan is None:
        return ""
    text = f" (of {plan['wanted']} wanted"
    if (rate := plan["failure_rate_per_day"]) is not None:
        text += (
            f", at {rate:.3g} failures a machine and day; own history: {plan['failures']} in"
            f" {plan['machine_days']:.3g} machine-days"
        )
    text += ")"
    if plan["arriving"]:
        text += f"; being tested: {', '.join(plan['arriving'])}"
    return text + (f"; asked the cluster for {plan['asked_for']}" if plan["asked_for"] else "")


async def describe(folder: RunFolder) -> dict[str, Any]:
    """Everything that `everstep status --json` prints."""
    state = folder.read_state()
    steps = load_steps(folder.steps)
    running = folder.is_running()
    phase = str(state.get("phase", "unknown"))
    found: dict[str, Any] = {
        "job": folder.job(),
        "phase": phase if phase != "running" else "starting" if running else "cut off",
        "missing": "",
        "step": steps[-1].step if steps else None,
        "attempt": steps[-1].attempt if steps else 0,
        "ui": state.get("ui", "") if running else "",
        "slots": state.get("slots", []),
        "standbys": state.get("standbys", []),
        "evicted": state.get("evicted", []),
        "standby_plan": state.get("standby_plan"),
        "barred": [],
        "incidents": len(list(folder.incidents.glob("*.json"))),
        "active_incident": None,
        "noted": state.get("noted", []),
        "notes": state.get("notes", []),
    }
    if running and "temporal" in state:
        try:
            found.update(await ask(folder))
        except TransientError as error:
            # It starts, stops, or starts its server again.
            found["missing"] = str(error)
    return found


async def ask(folder: RunFolder) -> dict[str, Any]:
    """What only the job itself knows; empty while nobody has taken it up yet.

    Raises:
        TransientError: The server does not answer.
    """
    use_server_of(folder)
    client = await runtime.connect(ANSWER_PATIENCE_S)
    job, patience = folder.job(), timedelta(seconds=ANSWER_PATIENCE_S)
    handle = client.get_workflow_handle_for(RunJob.run, names.job_workflow_id(job))
    try:
        status = await handle.query(RunJob.status, rpc_timeout=patience)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND or "poller" in str(error):
            return {}
        raise
    slots = [] if status.assignment is None else status.assignment.machine_names()
    found: dict[str, Any] = {
        "phase": status.phase,
        "started_at_s": status.started_at_s,
        "slots": slots,
        "standbys": [info.machine for info in status.pool],
        "standby_plan": None if status.standbys is None else asdict(status.standbys),
        "evicted": list(status.evicted),
        "barred": list(status.barred),
        "incidents": status.incidents,
        "active_incident": status.active_incident,
        "noted": [
            {
                "symptom": alert.symptom,
                "at_s": alert.at_s,
                "machine": alert.machine,
                "detail": alert.detail,
            }
            for alert in status.noted
        ],
        "notes": [[note.at_s, note.text] for note in status.notes],
    }
    if status.assignment is not None:
        found["attempt"] = status.assignment.attempt
    if status.active_incident is not None:
        incident_id = names.incident_workflow_id(job, status.active_incident)
        incident = client.get_workflow_handle_for(ResolveIncident.run, incident_id)
        record = await incident.query(ResolveIncident.record, rpc_timeout=patience)
        gone = [machine for machine in record.evicted if machine not in found["evicted"]]
        found["evicted"] += gone
        found["slots"] = [machine if machine not in gone else None for machine in slots]
        if record.outcome is Outcome.HELD:
            found["phase"] = f"incident {status.active_incident} held"
            found["missing"] = record.missing
    return found
