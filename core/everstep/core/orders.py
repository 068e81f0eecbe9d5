"""What machines are told to do, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.model import MachineInfo, RankExit
from everstep.core.vocabulary import Check, Verdict

FROM_THE_BEGINNING = 0
"""The step to restart from when no copy of some shard is left anywhere."""


@dataclass(frozen=True, slots=True)
class ShardCopy:
    """What one machine's memory holds of one rank's state.

    Attributes:
        rank: Whose state it is.
        steps: Committed steps, ascending; every one passed its checksum when it was committed.
        payload_bytes: Size of the newest one.
        in_parts: Those of the steps that take the parts of all ranks of the DP group to restore.
    """

    rank: int
    steps: tuple[int, ...]
    payload_bytes: int
    in_parts: tuple[int, ...] = ()


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
class Loan:
    """Fetch, until ranks here are restored, what other ranks keep for their DP groups.

    Attributes:
        ranks: Whose parts, ascending.
        machine: Which machine has them.
        host: Its address.
        port: Its transfer port.
    """

    ranks: tuple[int, ...]
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
        loans: What its ranks need of others to restore `step`.
    """

    attempt: int
    step: int
    pulls: tuple[Pull, ...]
    stored: StoredShare | None = None
    loans: tuple[Loan, ...] = ()


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
        yields: Whether any other order to the machine ends this check, and need not wait for it.
    """

    attempt: int
    check: Check
    deadline_s: float
    peers: tuple[MachineInfo, ...] = ()
    number: int = 0
    model: str = "dense"
    device: str = ""
    yields: bool = False


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
        settings: Arguments and variables of the code version, beside the spec's.
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
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StartReport:
    """The processes that a start order made, in the order of its ranks."""

    machine: str
    pids: tuple[int, ...]
    prewarmed: bool


@dataclass(frozen=True, slots=True)
class PrepareOrder:
    """Make a code version ready to run on this machine, while another runs.

    Attributes:
        directory: Where it lies.
        version: What it must be; empty: to be told.
    """

    directory: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """Whether a code version can run on this machine.

    Attributes:
        machine: Who reports.
        version: What lies there; empty if it cannot be read.
        problem: Why it cannot run, or empty.
    """

    machine: str
    version: str
    problem: str = ""


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
        manifest: Digest under which the same entries lie in the store: of a large job, that is all
            that fits into one message.
    """

    machine: str
    attempt: int
    at_s: float
    evidence: str
    ranks: tuple[RankStacks, ...]
    manifest: str = ""
