"""How a run stands now: from its folder, its job, and the incident that is open."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep.cli.asking import connect
from everstep.cli.find import use_server_of
from everstep.core.errors import InputError, TransientError
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Outcome
from everstep.workers import handles
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.standing import as_values, last_told
from everstep.workers.steps import load_steps
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob

ANSWER_PATIENCE_S = 5.0

STORY_SHOWN = 6


async def describe(folder: RunFolder, client: Client | None = None) -> dict[str, Any]:
    """Everything that `everstep status --json` prints.

    Args:
        folder: The run.
        client: Connected to its server, if there is one already.

    Raises:
        RPCError: Its server says so.
    """
    found = kept(folder)
    if not folder.is_running() or "temporal" not in folder.read_state():
        return found
    try:
        return found | await ask(folder, client)
    except (InputError, TransientError) as error:
        # It starts, stops, or starts its server again.
        return kept(folder) | ({"missing": str(error)} if folder.is_running() else {})


def kept(folder: RunFolder) -> dict[str, Any]:
    """The same as far as the run's folder tells it: all of it once the run has ended."""
    # In this order: a run that ends in between has ended, and was not cut off.
    running = folder.is_running()
    state = last_told(folder)
    phase = str(state.get("phase", "unknown"))
    steps = load_steps(folder.steps)
    return {
        "job": folder.job(),
        "phase": phase if phase != "running" else "starting" if running else "cut off",
        "missing": "",
        "step": steps[-1].step if steps else None,
        "attempt": max(state.get("attempt", 0), steps[-1].attempt if steps else 0),
        "ui": state.get("ui", "") if running else "",
        "slots": state.get("slots", []),
        "standbys": state.get("standbys", []),
        "standby_plan": state.get("standby_plan"),
        "evicted": state.get("evicted", []),
        "barred": state.get("barred", []),
        "incidents": max(state.get("incidents", 0), len(list(folder.incidents.glob("*.json")))),
        "active_incident": None,
        "incident": None,
        "noted": state.get("noted", []),
        "notes": state.get("notes", []),
        "updates": state.get("updates", []),
    }


def notes(found: Mapping[str, Any]) -> list[tuple[float, str]]:
    """What was noted, with times; of an update that was accepted also what has become of it."""
    outcomes = {f"{one.get('text')}: accepted": one["outcome"] for one in found["updates"]}
    return [
        (at_s, f"{text}, {outcomes[text]}" if text in outcomes else text)
        for at_s, text in found["notes"]
    ]


def _incident(record: IncidentRecord) -> dict[str, Any]:
    """The open incident in short: `everstep incident show` tells it all."""
    return {
        "number": record.incident,
        "symptom": record.opened_by.symptom,
        "then": list(record.later_symptoms),
        "machines": list(record.machines_named),
        "fault_at_s": record.fault_at_s,
        "outcome": record.outcome,
        "rungs": [climb.rung for climb in record.climbs],
        "story": [[entry.at_s, entry.text] for entry in record.timeline[-STORY_SHOWN:]],
    }


async def ask(folder: RunFolder, client: Client | None = None) -> dict[str, Any]:
    """What only the job itself knows; empty while nobody has taken it up yet.

    Args:
        folder: The run.
        client: Connected to its server, if there is one already.

    Raises:
        TransientError: The server does not answer.
    """
    if client is None:
        use_server_of(folder)
        client = await connect(ANSWER_PATIENCE_S)
    job, patience = folder.job(), timedelta(seconds=ANSWER_PATIENCE_S)
    handle = handles.of_job(client, job)
    try:
        status = await handle.query(RunJob.status, rpc_timeout=patience)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND or "poller" in str(error):
            return {}
        raise
    record = None
    if status.active_incident is not None:
        incident = handles.of_incident(client, job, status.active_incident)
        record = await incident.query(ResolveIncident.record, rpc_timeout=patience)
    found = as_values(status, record) | {
        "phase": status.phase,
        "started_at_s": status.started_at_s,
        "active_incident": status.active_incident,
    }
    if record is not None:
        found["incident"] = _incident(record)
        if record.outcome is Outcome.HELD:
            found["phase"] = f"incident {record.incident} held"
            found["missing"] = record.missing
    return found
