"""How incidents and jobs read in Temporal's web UI: search attributes, summaries, timelines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)

from everstep.core import updates
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Outcome, Rung, Symptom
from everstep.workflows.messages import JobStatus

MACHINES_SHOWN = 64

UPDATES_SHOWN = 10

JOB = SearchAttributeKey.for_keyword("EverstepJob")
SYMPTOM = SearchAttributeKey.for_keyword("EverstepSymptom")
RUNG = SearchAttributeKey.for_keyword("EverstepRung")
OUTCOME = SearchAttributeKey.for_keyword("EverstepOutcome")
MACHINE = SearchAttributeKey.for_keyword_list("EverstepMachine")

ALL_KEYS: dict[str, str] = {
    JOB.name: "Keyword",
    SYMPTOM.name: "Keyword",
    RUNG.name: "Keyword",
    OUTCOME.name: "Keyword",
    MACHINE.name: "KeywordList",
}
"""What a Temporal server must have registered, by name and type."""


_HOW_TO_ANSWER = (
    'To answer from here: *Send a Signal*, `approve` or `deny`, data `{"person": "YOUR NAME", '
    '"note": "why"}`. If nothing is asked, it changes nothing, and the story says so.',
    "",
)

_HOW_TO_UPDATE = (
    "To change code or arguments from here: *Send a Signal*, `push_update`, data"
    ' `{"author": "YOUR NAME", "reason": "why", "set": {"lr": "3e-4"}, "urgent": false}`; new code:'
    ' `"directory": "/where/it/lies/on/every/machine"`. The answer is noted here.',
    "",
)


def job_attributes(job: str) -> TypedSearchAttributes:
    """Search attributes of a job's workflow."""
    return TypedSearchAttributes([SearchAttributePair(JOB, job)])


def incident_attributes(job: str, symptom: Symptom) -> TypedSearchAttributes:
    """Search attributes of an incident when it is opened."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(JOB, job),
            SearchAttributePair(SYMPTOM, symptom.value),
            SearchAttributePair(OUTCOME, Outcome.OPEN.value),
        ]
    )


def climbed(
    symptom: Symptom, rung: Rung, machines: Sequence[str]
) -> list[SearchAttributeUpdate[Any]]:
    """What to upsert when a rung is climbed; machines add up over the incident."""
    updates: list[SearchAttributeUpdate[Any]] = [
        SYMPTOM.value_set(symptom.value),
        RUNG.value_set(rung.value),
    ]
    if machines:
        updates.append(MACHINE.value_set(list(machines)))
    return updates


def stands(outcome: Outcome) -> list[SearchAttributeUpdate[Any]]:
    """What to upsert when an incident is held, goes on, or ends."""
    return [OUTCOME.value_set(outcome.value)]


def clock(at_s: float) -> str:
    """A time of day in UTC, to the hundredth of a second."""
    moment = datetime.fromtimestamp(at_s, UTC)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 10_000:02d}"


def day(at_s: float) -> str:
    """The date in UTC."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}"


def summary(record: IncidentRecord) -> str:
    """The incident in one line."""
    parts = [f"{record.outcome.value}: {record.opened_by.reason}"]
    if record.later_symptoms:
        parts.append(f"then {', '.join(record.later_symptoms)}: {record.finding.reason}")
    if record.missing:
        parts.append(f"waits: {record.missing}")
    if record.first_step_at_s is not None:
        parts.append(f"{record.first_step_at_s - record.fault_at_s:.2f} s to the first new step")
    if record.restored_step is not None:
        parts.append(f"restarted from step {record.restored_step}, {record.lost_steps} steps lost")
    return "; ".join(parts)


def details(record: IncidentRecord) -> str:
    """An incident so far, as Markdown for the workflow's current details."""
    lines = [f"**Incident {record.incident} of {record.job}: {record.outcome}**", ""]
    if record.missing:
        lines += [f"**Waits for a person or a machine:** {record.missing}", "", *_HOW_TO_ANSWER]
    start = record.fault_at_s
    lines += [
        f"- `{clock(entry.at_s)}` +{max(0.0, entry.at_s - start):.2f} s: {entry.text}"
        for entry in record.timeline
    ]
    return "\n".join(lines)


def job_details(status: JobStatus) -> str:
    """A job so far, as Markdown for the workflow's current details."""
    lines = [f"**{status.job}: {status.phase}**", ""]
    if (held := status.assignment) is not None:
        lines.append(
            f"- attempt {held.attempt}, code {held.code_version}, on"
            f" {', '.join(held.machine_names()[:MACHINES_SHOWN])}"
            f"{', ...' if len(held.slots) > MACHINES_SHOWN else ''}"
        )
    lines.append(f"- standbys: {', '.join(info.machine for info in status.pool) or 'none'}")
    earlier = "..., " if len(status.evicted) > MACHINES_SHOWN else ""
    newest = ", ".join(status.evicted[-MACHINES_SHOWN:])
    lines.append(f"- evicted: {earlier}{newest or 'none'}")
    lines.append(f"- incidents: {status.incidents}; filter: `EverstepJob = '{status.job}'`")
    lines += [
        f"- {update.text()}: {updates.outcome(update, status.codes, status.updates)}"
        for update in status.updates[-UPDATES_SHOWN:]
    ]
    lines += ["", *_HOW_TO_UPDATE]
    lines += [f"- `{clock(note.at_s)}` {note.text}" for note in status.notes]
    return "\n".join(lines)
