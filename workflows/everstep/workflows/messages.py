"""What workflows, their clients and their activities send each other, beside `core.model`."""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.core.model import Alert, Assignment, IncidentRecord, MachineInfo, TimelineEntry
from everstep.spec.job import JobSpec


@dataclass(frozen=True, slots=True)
class JobInput:
    """What a job is started with.

    Attributes:
        spec: The spec without its environment: values there may be secrets, and this is history.
        code_version: Identifier of the first code version.
        code_directory: Where it lies on every machine.
        from_scratch: Whether checkpoints of earlier runs in storage are to be ignored.
    """

    spec: JobSpec
    code_version: str
    code_directory: str
    from_scratch: bool = False


@dataclass(slots=True)
class JobState:
    """Everything that a job's workflow carries through continue-as-new.

    Attributes:
        assignment: Who holds which slot, or None before the first start.
        pool: Machines that wait for a slot, in the order in which they joined.
        evictions: When (Unix seconds) which machine was evicted, in order.
        incidents: Number of incidents opened so far.
        active: Number of the open incident, or None.
        pending: Alerts that no incident has been handed yet.
        handed: Alerts that the open incident was handed; those that came too late to it stay ours.
        recent_keys: Keys of alerts already taken, oldest first, bounded.
        finished: Machines whose ranks all ended well in this attempt, in order of their reports.
        started_at_s: When the job was first started.
        noted: Newest alerts that did not call for action, oldest first, bounded.
        notes: What a person may want to know and no incident tells, oldest first, bounded.
    """

    assignment: Assignment | None = None
    pool: list[MachineInfo] = field(default_factory=list[MachineInfo])
    evictions: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    incidents: int = 0
    active: int | None = None
    pending: list[Alert] = field(default_factory=list[Alert])
    handed: list[Alert] = field(default_factory=list[Alert])
    recent_keys: list[str] = field(default_factory=list[str])
    finished: list[str] = field(default_factory=list[str])
    started_at_s: float | None = None
    noted: list[Alert] = field(default_factory=list[Alert])
    notes: list[TimelineEntry] = field(default_factory=list[TimelineEntry])


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What `everstep status` and the analyzer ask a job for."""

    job: str
    phase: str
    assignment: Assignment | None
    pool: tuple[MachineInfo, ...]
    evicted: tuple[str, ...]
    incidents: int
    active_incident: int | None
    noted: tuple[Alert, ...] = ()
    notes: tuple[TimelineEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended."""

    job: str
    attempts: int
    incidents: int
    started_at_s: float
    finished_at_s: float


@dataclass(frozen=True, slots=True)
class IncidentInput:
    """What an incident is opened with.

    Attributes:
        job: The job's input.
        incident: Number within the job, from 1.
        alerts: The alerts that opened it.
        assignment: Who holds which slot.
        pool: Machines that wait for a slot.
        evictions: Evictions of the job so far; the incident counts those in the window.
        run: The job's run, by which its checkpoints in storage are told from other runs'.
    """

    job: JobInput
    incident: int
    alerts: tuple[Alert, ...]
    assignment: Assignment
    pool: tuple[MachineInfo, ...]
    evictions: tuple[tuple[float, str], ...]
    run: str = ""


@dataclass(frozen=True, slots=True)
class IncidentResult:
    """What a closed incident hands back to its job.

    Attributes:
        record: The record, also the workflow's result.
        assignment: Who holds which slot now.
        evictions: Evictions by this incident.
        settled: Keys of the alerts that it dealt with; the job takes up all others again.
    """

    record: IncidentRecord
    assignment: Assignment
    evictions: tuple[tuple[float, str], ...]
    settled: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvictOrder:
    """Take a machine out for good.

    Attributes:
        machine: The machine, with the process id of the agent that is meant.
        incident: Which incident ordered it; with the machine, what makes the order idempotent.
        reason: One sentence for the record.
    """

    machine: MachineInfo
    incident: int
    reason: str


@dataclass(frozen=True, slots=True)
class AwaitStep:
    """Wait until every rank of an attempt has finished a step."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's word to a held incident: go on past the limit that holds it."""

    person: str
    note: str = ""
