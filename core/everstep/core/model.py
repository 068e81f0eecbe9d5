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
    # Not rows of Table 1: what is seen before anybody knows which row it is, or before it is one.
    LOSS_SPIKE = "loss_spike"
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
    CHECKS = "checks"
    REATTEMPT = "reattempt"
    ROLLBACK = "rollback"
    REPLAY = "replay"
    PAGE = "page"


class Mode(StrEnum):
    """How a rung may be performed: by itself, after a person's word, or not at all.

    An observed rung is noted with what it would have done, and the ladder goes on to the next.
    """

    OBSERVE = "observe"
    APPROVE = "approve"
    AUTOMATIC = "automatic"


class ClimbOutcome(StrEnum):
    """What a rung brought, as far as it can be said before the restart that follows it."""

    DONE = "done"
    """Performed; whether it helped is told by what happens after the restart."""
    FOUND = "found"
    """Tests named machines."""
    PASSED = "passed"
    """Every test passed on every machine, or the failure did not show again."""
    COULD_NOT_TELL = "could_not_tell"
    """Tests named nobody, and not all of them could be told."""
    OBSERVED = "observed"
    """Not performed: the rung's mode is observe."""
    DENIED = "denied"
    """Not performed: a person said no."""


class Check(StrEnum):
    """One stop-time check: what a machine does to itself, or with others, while nothing trains."""

    GPU = "gpu"
    MACHINE = "machine"
    LINKS = "links"
    BITWISE = "bitwise"


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


class Phase(StrEnum):
    """What a rank is doing, by its own word; decides how long it may be silent."""

    START = "start"
    STEP = "step"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    PAUSED = "paused"
    # Never a rank's own word: its process is gone, and nothing more will come.
    ENDED = "ended"

    def after_step(self) -> Phase:
        """The phase once a step has been finished in this one; a debugger stays one."""
        return self if self in (Phase.PAUSED, Phase.ENDED) else Phase.STEP


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
        oom_killed: Whether the kernel killed it because its cgroup or the machine ran out of
            memory; False also when nobody could tell.
    """

    rank: int
    machine: str
    attempt: int
    exit_code: int | None
    signal: int | None
    at_s: float
    step: int | None
    last_lines: tuple[str, ...] = ()
    oom_killed: bool = False

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
        subject: What the senses found faulty: a part of the machine, `GPU 0000:1a:00`, or of the
            job, `loss`; else empty.
        confident: Whether the machine's senses are certain, and it is bad enough to leave it.
        step: Newest step that all ranks had finished by then, where the observer knows.
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
    step: int | None = None

    @property
    def key(self) -> str:
        """Two alerts with one key are evidence of the same thing from the same place.

        Senses raise one alert a fault of a part, so that each of those stands for itself.
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
class StoredCheckpoint:
    """A complete checkpoint in the storage tier.

    Attributes:
        name: Its folder's name.
        step: Step after which it was taken.
        attempt: Attempt in which it was taken.
        run: The run that it was taken in, as folders name it.
        saved_at_s: When it was complete, by the clock of the machine that finished it.
        layout: Sizes and order of the parallelism that it was taken in.
        size_bytes: What it takes in storage, apart from its description.
    """

    name: str
    step: int
    attempt: int
    run: str
    saved_at_s: float
    layout: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StorageReport:
    """What the storage tier shows to one machine.

    Attributes:
        machine: Who looked.
        checkpoints: Complete checkpoints of the job, in no order.
        unusable: Names of folders that are no complete checkpoint, each with the reason.
        reason: Why nothing could be seen, or empty.
    """

    machine: str
    checkpoints: tuple[StoredCheckpoint, ...]
    unusable: tuple[tuple[str, str], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StoredShare:
    """One machine's part in restoring from storage.

    Attributes:
        checkpoint: Name of the checkpoint's folder.
        ranks: Ranks whose state is to be put into this machine's memory. None when the job's layout
            is not the checkpoint's: then the share is only checked, and ranks read what they need.
        share: Index of the machine's share of that check.
        shares: Number of shares.
    """

    checkpoint: str
    ranks: tuple[int, ...]
    share: int
    shares: int


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """Make this machine's memory ready to restart from `step`.

    Attributes:
        attempt: The attempt that will start from it.
        step: The step that all ranks agreed on.
        pulls: Shards that this machine must hold at `step` and does not.
        stored: What it is to take from storage, or None.
    """

    attempt: int
    step: int
    pulls: tuple[Pull, ...]
    stored: StoredShare | None = None


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Which ranks' shards arrived whole, and which did not, with the reason."""

    machine: str
    pulled: tuple[int, ...]
    failed: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class CheckOrder:
    """Check a machine on which no ranks run.

    Attributes:
        attempt: The attempt that was stopped.
        check: What to check.
        deadline_s: How long the check may take, > 0; whatever runs then is killed.
        peers: For `links` only: the machines that meet, this one among them, in an order that all
            of them are given. The first one hosts the store in which they meet.
        number: Tells apart checks of one attempt that are alike; 0, 1, ...
        model: For `bitwise` only: the kind of the job's model, `dense` or `moe`.
        device: `cpu` or `cuda`; empty: the GPUs if torch finds any, else the CPU.
    """

    attempt: int
    check: Check
    deadline_s: float
    peers: tuple[MachineInfo, ...] = ()
    number: int = 0
    model: str = "dense"
    device: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found on one machine.

    Attributes:
        machine: Who was checked.
        check: What was checked.
        verdict: What it says. For `links`, faulty means that this group of machines failed, not
            that this machine did; for `bitwise`, healthy means no more than that there is a digest.
        detail: One sentence with what decided.
        digest: For `bitwise`: SHA-256 over outputs and gradients of all ranks of the machine;
            empty when there is none.
        peers: For `links`: the machines that could not be reached or sent wrong content, sorted.
        took_s: How long it took.
        device: What was checked, `cpu` or `cuda`; empty when nothing was.
        figures: What was measured, by name with unit, the worst of the machine's ranks; to be held
            against the other machines' (`core.checks.slower_than_peers`).
    """

    machine: str
    check: Check
    verdict: Verdict
    detail: str
    digest: str = ""
    peers: tuple[str, ...] = ()
    took_s: float = 0.0
    device: str = ""
    figures: tuple[tuple[str, float], ...] = ()


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
        run: Identifier of the job's run; names what is saved to storage.
        stored: Name of the checkpoint in storage that ranks read `restore_step` from, as it was
            saved in another layout; empty when they find it in memory.
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
    run: str = ""
    stored: str = ""


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
    """What a rank said of itself, seen by its agent.

    Attributes:
        machine: Where it runs.
        attempt: The attempt that it belongs to.
        rank: Global rank.
        step: The newest step that it finished, or restored.
        at_s: When it said so.
        phase: What it is doing now.
        loss: Loss of that step, may be NaN; None when it was not told.
        grad_norm: Norm of that step's gradient, likewise.
        mfu: Speed, in any unit that rises with it; None when it was not told.
        from_log: Whether it was read from the rank's log, where one rank may speak for all.
    """

    machine: str
    attempt: int
    rank: int
    step: int
    at_s: float
    phase: Phase = Phase.STEP
    loss: float | None = None
    grad_norm: float | None = None
    mfu: float | None = None
    from_log: bool = False


@dataclass(frozen=True, slots=True)
class CopyDamaged:
    """A rank found its shard damaged when it was about to restore it.

    Attributes:
        machine: Whose memory held the shard; it is forgotten there.
        attempt: The attempt that restores.
        rank: Whose shard it was.
        step: Its step.
        detail: One sentence: what was damaged, and which copy took its place or why none did.
        at_s: When.
    """

    machine: str
    attempt: int
    rank: int
    step: int
    detail: str
    at_s: float


MachineEvent = (
    MachineInfo | RankExit | RanksFinished | RanksStarted | RankProgress | CopyDamaged | Alert
)
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
        code_directory: Where it lies on every machine; empty: where the job began with it.
    """

    attempt: int
    slots: tuple[MachineInfo, ...]
    code_version: str
    code_directory: str = ""

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
        killed: Whether a signal that others send (SIGKILL, SIGTERM) ended the first rank.
        first_action: What to do first, as what the ranks said last is read: a value of
            `classify.names.Action`; empty when nothing telling was said.
        confidence: Of that reading, 0 to 1.
    """

    symptom: Symptom
    machines: tuple[str, ...]
    ranks: tuple[int, ...]
    confident: bool
    reason: str
    killed: bool = False
    first_action: str = ""
    confidence: float = 0.0


@dataclass(frozen=True, slots=True)
class Climb:
    """A rung that was climbed, with what led to it and what it brought.

    Attributes:
        rung: Which one.
        reason: One sentence.
        machines: Machines that it evicted, or that its tests named.
        attempt: The attempt that had failed.
        at_s: When.
        outcome: What it brought.
        symptom: The failure that it answered; None in records of older versions.
        suspects: Machines at which the evidence pointed when it was chosen.
    """

    rung: Rung
    reason: str
    machines: tuple[str, ...]
    attempt: int
    at_s: float
    outcome: ClimbOutcome = ClimbOutcome.DONE
    symptom: Symptom | None = None
    suspects: tuple[str, ...] = ()


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
        recorder_digest: Under which its flight recorder lies there; empty where there is none.
    """

    rank: int
    answer: str
    detail: str
    digest: str
    recorder_digest: str = ""


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
