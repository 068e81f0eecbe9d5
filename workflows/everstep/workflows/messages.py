"""What workflows, their clients and their activities send each other, beside what `core` has."""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.core.memory import CodeVersion, MachineHistory
from everstep.core.model import Alert, Assignment, MachineInfo
from everstep.core.record import IncidentRecord, TimelineEntry
from everstep.core.updates import Settings, Update
from everstep.spec.job import JobSpec
from everstep.workflows.batches import MACHINES_PER_BATCH

MAX_EVENTS = 1_000
"""Far below Temporal's 51,200: a controller that takes a job over has to read them all within one
workflow task, two seconds, or nobody ever does. 1,740 took that long on a busy machine."""

DEFAULT_WINDOW_S = 24 * 3600.0
"""The paper's: a failure brings a restart sooner than that."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """What a job is started with.

    Attributes:
        spec: The spec without its environment: values there may be secrets, and this is history.
        code_version: Identifier of the first code version.
        code_directory: Where it lies on every machine.
        from_scratch: Whether checkpoints of earlier runs in storage are to be ignored.
        earlier_code: Versions of before, oldest first, to which a rollback may go.
        max_events: Length of the history from which on a new run is begun.
        machines_per_batch: How many machines one workflow orders by itself; of more, each so many
            are ordered by a child workflow, `OrderMachines`.
    """

    spec: JobSpec
    code_version: str
    code_directory: str
    from_scratch: bool = False
    earlier_code: tuple[CodeVersion, ...] = ()
    max_events: int = MAX_EVENTS
    machines_per_batch: int = MACHINES_PER_BATCH


@dataclass(frozen=True, slots=True)
class Requested:
    """Machines that a cluster was asked for.

    Attributes:
        number: Of the request, within the job.
        at_s: When it was made.
        count: How many of them have not come yet.
    """

    number: int
    at_s: float
    count: int


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
        machines: What is remembered of machines that were evicted, bounded.
        codes: The code versions of the job, oldest first, bounded.
        out: Machines that the open incident has evicted, and that hold slots of ours no more.
        barred: Machines that may not join before a person admits them, bounded.
        attempt_from: The step that the current attempt started from.
        attempt_at_s: When the current attempt was seen to run.
        noted: Newest alerts that did not call for action, oldest first, bounded.
        notes: What a person may want to know and no incident tells, oldest first, bounded.
        in_test: Evicted machines whose agents live on and are tested by the open incident.
        updates: Changes that were asked for, oldest first, bounded.
        num_updates: How many were accepted so far.
        arriving: Machines that have joined and are tested before they count as standbys.
        requested: Machines that the cluster was asked for and that have not come yet.
        num_requests: How often it was asked.
        num_tests: How many tests of machines without a slot were ordered.
        tested_at_s: When all standbys had last been tested again.
        refused: How many machines in a row were lost or refused before they became standbys.
        refused_at_s: When the last of them was.
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
    machines: list[MachineHistory] = field(default_factory=list[MachineHistory])
    codes: list[CodeVersion] = field(default_factory=list[CodeVersion])
    out: list[str] = field(default_factory=list[str])
    barred: list[MachineInfo] = field(default_factory=list[MachineInfo])
    attempt_from: int = 0
    attempt_at_s: float = 0.0
    noted: list[Alert] = field(default_factory=list[Alert])
    notes: list[TimelineEntry] = field(default_factory=list[TimelineEntry])
    in_test: list[MachineInfo] = field(default_factory=list[MachineInfo])
    updates: list[Update] = field(default_factory=list[Update])
    num_updates: int = 0
    arriving: list[MachineInfo] = field(default_factory=list[MachineInfo])
    requested: list[Requested] = field(default_factory=list[Requested])
    num_requests: int = 0
    num_tests: int = 0
    tested_at_s: float = 0.0
    refused: int = 0
    refused_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """How many standbys a job should have, and who is on the way.

    Attributes:
        wanted: How many there should be.
        failure_rate_per_day: The rate that this follows from; None where the spec says how many.
        failures: Machines of the job that failed so far.
        machine_days: Days that its machines have run, summed over machines.
        arriving: Machines that are tested before they count.
        asked_for: How many the cluster was asked for that have not joined yet.
    """

    wanted: int
    failure_rate_per_day: float | None
    failures: int
    machine_days: float
    arriving: tuple[str, ...]
    asked_for: int


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
    barred: tuple[str, ...] = ()
    machines: tuple[MachineHistory, ...] = ()
    codes: tuple[CodeVersion, ...] = ()
    noted: tuple[Alert, ...] = ()
    notes: tuple[TimelineEntry, ...] = ()
    updates: tuple[Update, ...] = ()
    started_at_s: float | None = None
    standbys: StandbyStatus | None = None


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
        evictions: Evictions of the job within the window of its brake.
        run: The job's run, by which its checkpoints in storage are told from other runs'.
        codes: The code versions of the job, oldest first.
        attempt_from: The step that the failed attempt started from.
        attempt_at_s: When it was seen to run.
        updates: Changes that wait for a restart, in order.
        remembers: Whether the job knows by itself what it was told of slots; one of an older
            controller takes only what the result says.
    """

    job: JobInput
    incident: int
    alerts: tuple[Alert, ...]
    assignment: Assignment
    pool: tuple[MachineInfo, ...]
    evictions: tuple[tuple[float, str], ...]
    run: str = ""
    codes: tuple[CodeVersion, ...] = ()
    attempt_from: int = 0
    attempt_at_s: float = 0.0
    updates: tuple[Update, ...] = ()
    remembers: bool = False


@dataclass(frozen=True, slots=True)
class IncidentResult:
    """What a closed incident hands back to its job.

    Attributes:
        record: The record, also the workflow's result.
        assignment: Who holds which slot now; None where the job has been told.
        evictions: Evictions by this incident.
        settled: Keys of the alerts that it dealt with; the job takes up all others again.
        codes: The code versions of the job, with what became of them.
    """

    record: IncidentRecord
    assignment: Assignment | None
    evictions: tuple[tuple[float, str], ...]
    settled: tuple[str, ...]
    codes: tuple[CodeVersion, ...] = ()


@dataclass(frozen=True, slots=True)
class Eviction:
    """A machine is out, as the open incident tells its job at once.

    Attributes:
        machine: Its name.
        at_s: When.
        reason: One sentence.
        tested: Whether its agent lives on and is tested: it joins again by what that says.
    """

    machine: str
    at_s: float
    reason: str
    tested: bool = False


@dataclass(frozen=True, slots=True)
class TestedMachine:
    """What the tests say of a machine that was evicted for its group alone.

    Attributes:
        machine: The machine as it was evicted.
        healthy: Whether it may take a slot again.
        suspected: Whether a rank of its own stood out with the others of the group.
        finding: One sentence.
    """

    __test__ = False

    machine: MachineInfo
    healthy: bool
    suspected: bool
    finding: str


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's word to a held incident: to go on past what holds it, or to leave that out."""

    person: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's answer to the question that a held incident asks.

    Attributes:
        yes: Whether to go on past what holds it; else that is left out.
        person: Who says so.
        note: Why.
        question: The question that was answered, as the incident's record has it (`missing`);
            empty: whichever is open.
    """

    yes: bool
    person: str
    note: str = ""
    question: str = ""


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """A change of code or arguments that a person asks for.

    Attributes:
        author: Who asks.
        directory: Where the new code lies on every machine; empty to keep the code.
        settings: Arguments to set, as `core.updates.command_with` takes them.
        reason: Why.
        urgent: Whether training is to stop for it at once.
        window_s: Seconds after which it is made though nothing else has stopped training, > 0.
        set: The same as `settings`, as people write it by hand in Temporal's web UI; set after it.
    """

    author: str
    directory: str = ""
    settings: Settings = ()
    reason: str = ""
    urgent: bool = False
    window_s: float = DEFAULT_WINDOW_S
    set: dict[str, str] = field(default_factory=dict[str, str])

    def all_settings(self) -> Settings:
        """What is set, however it was written."""
        return (*self.settings, *self.set.items())


@dataclass(frozen=True, slots=True)
class UpdateAnswer:
    """What became of the wish.

    Attributes:
        update: The update, accepted; None when it was refused.
        refused: Why, a text a machine that objects; empty when it was accepted.
    """

    update: Update | None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Somebody withdraws an update that still waits."""

    number: int
    person: str


@dataclass(frozen=True, slots=True)
class UpdatesMade:
    """An incident's restart made these updates; they are this code version now."""

    numbers: tuple[int, ...]
    version: str


@dataclass(frozen=True, slots=True)
class UpdatesUndone:
    """An incident has rolled these code versions back, and the updates that had become them."""

    versions: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class UpdatesHeard:
    """An incident has heard that these updates are withdrawn, and had not made them before."""

    withdrawn: tuple[int, ...]
