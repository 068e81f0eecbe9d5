"""How a run stands now: from its folder, its job, and the incident that is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep.cli.asking import connect
from everstep.cli.find import use_server_of
from everstep.core import updates
from everstep.core.errors import InputError, TransientError
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Outcome
from everstep.workers import handles
from everstep.workers.local.folder import RunFolder
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
    state = folder.read_state()
    phase = str(state.get("phase", "unknown"))
    steps = load_steps(folder.steps)
    return {
        "job": folder.job(),
        "phase": phase if phase != "running" else "starting" if running else "cut off",
        "missing": "",
        "step": steps[-1].step if steps else None,
        "attempt": steps[-1].attempt if steps else 0,
        "ui": state.get("ui", "") if running else "",
        "slots": state.get("slots", []),
        "standbys": state.get("standbys", []),
        "standby_plan": state.get("standby_plan"),
        "evicted": state.get("evicted", []),
        "barred": [],
        "incidents": len(list(folder.incidents.glob("*.json"))),
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
        "symptom": record.finding.symptom,
        "machines": list(record.finding.machines),
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
        "updates": updates.told(status.updates, status.codes),
    }
    if status.assignment is not None:
        found["attempt"] = status.assignment.attempt
    if status.active_incident is not None:
        incident = handles.of_incident(client, job, status.active_incident)
        record = await incident.query(ResolveIncident.record, rpc_timeout=patience)
        found["incident"] = _incident(record)
        gone = [machine for machine in record.evicted if machine not in found["evicted"]]
        found["evicted"] += gone
        found["slots"] = [machine if machine not in gone else None for machine in slots]
        if record.outcome is Outcome.HELD:
            found["phase"] = f"incident {status.active_incident} held"
            found["missing"] = record.missing
    return found
