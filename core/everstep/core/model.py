"""The values that every process speaks in: machines, ranks, orders, reports, alerts.

Everything here is a frozen dataclass or an enum, so that it can travel through Temporal payloads
unchanged and be compared in tests. Times are Unix seconds on the observer's own clock; steps count
optimizer updates, so step 0 is the state before the first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FROM_THE_BEGINNING = 0
"""The step to restart from when no copy of some shard is left anywhere."""


class Symptom(StrEnum):
    """What was seen: the rows of the paper's Table 1, and three that recovery needs beside them."""

    CUDA_ERROR = "cuda_error"
    CPU_OVERLOAD = "cpu_overload"
    CPU_OOM = "cpu_oom"
    DISK_SPACE = "disk_space"
    INFINIBAND_ERROR = "infiniband_error"
    FILESYSTEM_MOUNT = "filesystem_mount"
    HDFS_ERROR = "hdfs_error"
    CONTAINER_ERROR = "container_error"
    OS_KERNEL_PANIC = "os_kernel_panic"
    GPU_MEMORY_ERROR = "gpu_memory_error"
    EXTERNAL_SERVICE_ERROR = "external_service_error"
    GPU_UNAVAILABLE = "gpu_unavailable"
    DISK_FAULT = "disk_fault"
    JOB_HANG = "job_hang"
    MFU_DECLINE = "mfu_decline"
    NAN_VALUE = "nan_value"
    CODE_DATA_ADJUSTMENT = "code_data_adjustment"
    CODE_ERROR = "code_error"
    # Not rows of Table 1: what is seen before anybody knows which row it is.
    PROCESS_CRASH = "process_crash"
    AGENT_LOST = "agent_lost"


class Verdict(StrEnum):
    """The result of a check. Could-not-tell is its own value and is never "healthy"."""

    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNOBSERVABLE = "unobservable"


class Rung(StrEnum):
    """One step of the escalation ladder."""

    EVICT = "evict"
    REATTEMPT = "reattempt"
    PAGE = "page"


class Outcome(StrEnum):
    """How an incident stands or ended."""

    OPEN = "open"
    HELD = "held"
    RECOVERED = "recovered"


class Observer(StrEnum):
    """Who raised an alert."""

    AGENT = "agent"
    ANALYZER = "analyzer"
    CONTROLLER = "controller"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """A machine as its agent announced it.

    Attributes:
        machine: Name, unique in the job; part of the agent's task queue.
        host: Address under which other machines reach its ports.
        transfer_port: Checkpoint transfer port (authenticated).
        rendezvous_port: Port of its torch store, used when the machine holds slot 0.
        agent_pid: Process id of the agent on its own host.
        joined_at_s: When the agent became ready to start ranks.
    """

    machine: str
    host: str
    transfer_port: int
    rendezvous_port: int
    agent_pid: int
    joined_at_s: float


@dataclass(frozen=True, slots=True)
class RankExit:
    """The end of one rank's process.

    Attributes:
        rank: Global rank.
        machine: Where it ran.
        attempt: The attempt it belonged to.
        exit_code: Exit status, or None when a signal ended it or nobody could tell.
        signal: Signal number that ended it, or None.
        at_s: When the agent saw the end.
        step: Last step that the rank reported, or None when it reported none.
        last_lines: The last lines of its log, oldest first.
    """

    rank: int
    machine: str
    attempt: int
    exit_code: int | None
    signal: int | None
    at_s: float
    step: int | None
    last_lines: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Whether the process ended by itself with exit code 0."""
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class Alert:
    """Evidence from one observer at one time; one of many, maybe, for the same fault.

    Attributes:
        observer: Who raised it.
        symptom: What was seen.
        at_s: When.
        detail: One sentence with what decided.
        attempt: The attempt that it concerns; 0 when it concerns a machine.
        machine: Where it was seen, or None.
        rank: The rank that it concerns, or None.
        rank_exit: How that rank ended, if it did.
        subject: The part of the machine that its senses found faulty, `GPU 0000:1a:00`; else empty.
        confident: Whether the machine's senses are certain, and it is bad enough to leave it.
    """

    observer: Observer
    symptom: Symptom
    at_s: float
    detail: str
    attempt: int = 0
    machine: str | None = None
    rank: int | None = None
    rank_exit: RankExit | None = None
    subject: str = ""
    confident: bool = False

    @property
    def key(self) -> str:
        """Two alerts with one key are evidence of the same thing from the same place.

        A machine's senses raise one alert a fault, so that each of theirs stands for itself.
        """
        key = f"{self.symptom}/{self.attempt}/{self.machine}/{self.rank}"
        return f"{key}/{self.subject}/{self.at_s}" if self.subject else key


@dataclass(frozen=True, slots=True)
class ShardCopy:
    """What one machine's memory holds of one rank's state.

    Attributes:
        rank: Whose state it is.
        steps: Committed steps, ascending; every one passed its checksum when it was committed.
        payload_bytes: Size of the newest one.
    """

    rank: int
    steps: tuple[int, ...]
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class StopOrder:
    """End every rank of this attempt and of older ones."""

    attempt: int


@dataclass(frozen=True, slots=True)
class MachineReport:
    """A machine after a stop order: how its ranks ended, and what its memory holds.

    Attributes:
        machine: Who reports.
        exits: Ranks that had ended by themselves before the order came, by time.
        stopped: Ranks that were running and were ended by the order.
        copies: One entry a rank of which this machine holds a committed copy.
    """

    machine: str
    exits: tuple[RankExit, ...]
    stopped: tuple[int, ...]
    copies: tuple[ShardCopy, ...]


@dataclass(frozen=True, slots=True)
class Pull:
    """Fetch one rank's shard from another machine's memory."""

    rank: int
    machine: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """Make this machine's memory ready to restart from `step`.

    Attributes:
        attempt: The attempt that will start from it.
        step: The step that all ranks agreed on.
        pulls: Shards that this machine must hold at `step` and does not.
    """

    attempt: int
    step: int
    pulls: tuple[Pull, ...]


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Which pulls arrived whole, and which did not, with the reason."""

    machine: str
    pulled: tuple[int, ...]
    failed: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class RankStart:
    """One rank to start.

    Attributes:
        rank: Global rank.
        local_rank: Its index on the machine.
        backup: The machine that holds its copy, or None when nobody does.
    """

    rank: int
    local_rank: int
    backup: MachineInfo | None


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Start the ranks of one slot.

    Attributes:
        attempt: Number of this start; rises with every restart.
        slot: Index of the machine in the job, 0 to machines - 1.
        ranks: What to start here.
        held_ranks: Ranks of which this machine keeps the backup copy.
        world_size: Number of ranks in the job.
        num_machines: Number of machines in the job.
        master_host: Host of the rendezvous store.
        master_port: Port of the rendezvous store.
        restore_step: Step to restore; copies of later steps are discarded. FROM_THE_BEGINNING
            means that ranks get no state and the script starts as it would by itself.
        code_directory: Where the code version lies on the machine.
    """

    attempt: int
    slot: int
    ranks: tuple[RankStart, ...]
    held_ranks: tuple[int, ...]
    world_size: int
    num_machines: int
    master_host: str
    master_port: int
    restore_step: int
    code_directory: str


@dataclass(frozen=True, slots=True)
class StartReport:
    """The processes that a start order made, in the order of its ranks."""

    machine: str
    pids: tuple[int, ...]
    prewarmed: bool


@dataclass(frozen=True, slots=True)
class RanksFinished:
    """All ranks of one machine ended with exit code 0 in this attempt."""

    machine: str
    attempt: int
    at_s: float


@dataclass(frozen=True, slots=True)
class RanksStarted:
    """The ranks of one machine are being started in this attempt, from `step`."""

    machine: str
    attempt: int
    ranks: tuple[int, ...]
    step: int
    at_s: float


@dataclass(frozen=True, slots=True)
class RankProgress:
    """The newest step that a rank finished, or restored, seen by its agent."""

    machine: str
    attempt: int
    rank: int
    step: int
    at_s: float


MachineEvent = MachineInfo | RankExit | RanksFinished | RanksStarted | RankProgress
"""What an agent tells the outside, in the order in which it saw it."""


@dataclass(frozen=True, slots=True)
class StepSeen:
    """The first time that every rank of an attempt had finished a step.

    Attributes:
        attempt: The attempt.
        step: The slowest rank's step.
        at_s: When the last rank got there.
    """

    attempt: int
    step: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which machine holds which slot in one attempt.

    Attributes:
        attempt: Number of the attempt.
        slots: Machines by slot; slot i runs ranks i * gpus_per_machine onwards.
        code_version: Identifier of the code that runs.
    """

    attempt: int
    slots: tuple[MachineInfo, ...]
    code_version: str

    def machine_names(self) -> list[str]:
        """The assigned machines' names, by slot."""
        return [info.machine for info in self.slots]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the evidence says so far.

    Attributes:
        symptom: Best name for what happened.
        machines: Machines that the evidence points at, sorted; empty when nobody stands out.
        ranks: Ranks that the evidence points at, sorted.
        confident: Whether it is a high-confidence, machine-specific fault.
        reason: One sentence with the evidence that decided.
    """

    symptom: Symptom
    machines: tuple[str, ...]
    ranks: tuple[int, ...]
    confident: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Climb:
    """A rung that was performed, with what led to it and what it cost."""

    rung: Rung
    reason: str
    machines: tuple[str, ...]
    attempt: int
    at_s: float


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of an incident's story."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """Everything that is kept of an incident.

    Attributes:
        incident: Number within the job, from 1.
        job: Name of the job.
        opened_at_s: When the first alert was raised.
        fault_at_s: When the fault showed itself, by the earliest evidence.
        outcome: How it stands.
        finding: What the evidence says.
        climbs: Rungs performed, in order.
        timeline: The story, in order.
        evicted: Machines taken out.
        replacements: Machines that took their slots.
        attempt_before: The attempt that failed.
        attempt_after: The attempt that runs now.
        restored_step: Step that the job restarted from, or None when it did not restart.
        failed_step: Newest step that any rank had saved before the fault; None if none was.
        lost_steps: Finished steps that are done again.
        first_step_at_s: When the first new step was finished by all ranks, or None.
        closed_at_s: When it was closed, or None.
        missing: What the incident waits for while it is held; empty otherwise.
        code_version: The code that ran.
    """

    incident: int
    job: str
    opened_at_s: float
    fault_at_s: float
    outcome: Outcome
    finding: Finding
    climbs: tuple[Climb, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    evicted: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    attempt_before: int = 0
    attempt_after: int = 0
    restored_step: int | None = None
    failed_step: int | None = None
    lost_steps: int = 0
    first_step_at_s: float | None = None
    closed_at_s: float | None = None
    missing: str = ""
    code_version: str = ""


@dataclass(frozen=True, slots=True)
class TraceOrder:
    """Tell where every rank of this machine stands.

    Attributes:
        attempt: The attempt that is meant; None for whichever runs.
        deadline_s: How long one process may take to answer, > 0.
        native: Whether to show frames of C and C++, too.
        nonblocking: Whether to read without stopping the process; may give a torn stack.
    """

    attempt: int | None = None
    deadline_s: float = 5.0
    native: bool = False
    nonblocking: bool = False


@dataclass(frozen=True, slots=True)
class RankStacks:
    """One rank's stacks, kept as evidence.

    Attributes:
        rank: Global rank.
        answer: `answered`, or what happened instead, as in `everstep.core.stacks.dump.Answer`.
        detail: What went wrong; empty for a plain answer.
        digest: Under which the dump lies in the run's evidence store.
    """

    rank: int
    answer: str
    detail: str
    digest: str


@dataclass(frozen=True, slots=True)
class TraceReport:
    """Where the ranks of one machine stood, by reference.

    Attributes:
        machine: Who reports.
        attempt: The attempt whose ranks were asked.
        at_s: When they were.
        evidence: URL of the evidence store, as fsspec writes it.
        ranks: One entry a rank, ascending.
    """

    machine: str
    attempt: int
    at_s: float
    evidence: str
    ranks: tuple[RankStacks, ...]
