"""How a run's job stood when it was asked last: what is left to tell once nobody can be asked.

A run may be stopped or cut off at any moment, so this is kept while it lives. It lies beside the
run's state, and not in it: by the state's age commands know which run is the newest.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError

from everstep.activities.archive import load_incidents
from everstep.core import updates
from everstep.core.errors import InputError
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Outcome
from everstep.workers.local.folder import RunFolder
from everstep.workflows.messages import JobStatus

logger = logging.getLogger(__name__)

KEEP_EVERY_S = 5.0
"""Where nothing changes: how far back the end of a run that is cut off may seem to lie."""

_OPEN, _TOLD_AT = "open_incident", "told_at_s"

_RECORD = TypeAdapter(IncidentRecord)


def as_values(status: JobStatus, record: IncidentRecord | None) -> dict[str, Any]:
    """How a job stands, as JSON values.

    Args:
        status: What the job says.
        record: What its open incident says, which knows first who is out; None without one.
    """
    slots = [] if status.assignment is None else status.assignment.machine_names()
    evicted = list(status.evicted)
    gone = [machine for machine in record.evicted if machine not in evicted] if record else []
    found: dict[str, Any] = {
        "job_started_at_s": status.started_at_s,
        "slots": [None if machine in gone else machine for machine in slots],
        "standbys": [info.machine for info in status.pool],
        "standby_plan": None if status.standbys is None else asdict(status.standbys),
        "evicted": evicted + gone,
        "barred": list(status.barred),
        "incidents": status.incidents,
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
    return found


class Keeper:
    """Keeps it in the run's folder; nobody else writes there.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._kept: dict[str, Any] = {}
        self._kept_at_s = 0.0

    def keep(self, status: JobStatus, newest: IncidentRecord | None) -> None:
        """Write what the job and its newest incident say, if that is new or was written long ago.

        Replaced as a whole. A disk that is full costs what is told later, and not the run.
        """
        opened = None if newest is None or newest.outcome is Outcome.RECOVERED else newest
        found = as_values(status, opened)
        found[_OPEN] = None if opened is None else _RECORD.dump_python(opened, mode="json")
        now_s = time.time()
        if found == self._kept and now_s - self._kept_at_s < KEEP_EVERY_S:
            return
        try:
            self._folder.write_standing({**found, _TOLD_AT: now_s})
        except OSError as error:
            logger.warning("how the job stands cannot be kept: %s", error)
            return
        self._kept, self._kept_at_s = found, now_s


def last_told(folder: RunFolder) -> dict[str, Any]:
    """What was kept last; of runs of before, which kept it at their end, what their state has."""
    return {**folder.read_state(), **folder.read_standing()}


def last_told_s(folder: RunFolder) -> float:
    """When the job was asked last, Unix seconds; 0 if never."""
    return float(folder.read_standing().get(_TOLD_AT, 0.0))


def kept_incidents(folder: RunFolder) -> dict[int, IncidentRecord]:
    """All incidents by number, as far as the run's folder tells them.

    Raises:
        InputError: What was kept of the open one cannot be read.
    """
    records = {record.incident: record for record in load_incidents(folder.incidents)}
    found = folder.read_standing().get(_OPEN)
    if found is None:
        return records
    try:
        opened = _RECORD.validate_python(found)
    except ValidationError as error:
        raise InputError(
            str(folder.standing), f"cannot be read: {error}", "Name a folder of `everstep run`."
        ) from error
    saved = records.get(opened.incident)
    # Its workflow may have archived more than was asked for since.
    behind = saved is not None and (
        saved.outcome is Outcome.RECOVERED or len(saved.timeline) > len(opened.timeline)
    )
    return records if behind else {**records, opened.incident: opened}
