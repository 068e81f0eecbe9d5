"""Machines and ranks, and what is seen of them.

Frozen dataclasses here, in `orders` and in `record` travel through Temporal payloads unchanged and
are compared in tests. Times are Unix seconds on the observer's own clock; steps count optimizer
updates, so step 0 is the state before the first one.
"""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.vocabulary import Observer, Phase, Symptom


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
        pod: Name of the pod that it runs in; empty outside of Kubernetes.
        pod_uid: What tells that pod from an earlier or later one of its name; likewise.
    """

    machine: str
    host: str
    transfer_port: int
    rendezvous_port: int
    agent_pid: int
    joined_at_s: float
    pod: str = ""
    pod_uid: str = ""


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
        lines: More of what decided, for people: a table, say.
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
    lines: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Two alerts with one key are evidence of the same thing from the same place.

        Senses raise one alert a fault of a part, so that each of those stands for itself.
        """
        key = f"{self.symptom}/{self.attempt}/{self.machine}/{self.rank}"
        return f"{key}/{self.subject}/{self.at_s}" if self.subject else key


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
        ran_s: How long the main thread of its process has been on a core so far, when its agent
            heard of the step; None when the kernel does not tell.
        waited_s: How long its process has been in collectives so far, by its own word; None when
            it does not tell.
        stalled_s: How long it has stood still for checkpoints so far in this attempt; None when
            nobody tells.
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
    ran_s: float | None = None
    waited_s: float | None = None
    stalled_s: float | None = None


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
        stalled_s: How long training stood still for checkpoints since the step before it: the
            longest that any rank did.
    """

    attempt: int
    step: int
    at_s: float
    stalled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which machine holds which slot in one attempt.

    Attributes:
        attempt: Number of the attempt.
        slots: Machines by slot; slot i runs ranks i * gpus_per_machine onwards.
        code_version: Identifier of the code that runs.
        code_directory: Where it lies on every machine; empty: where the job began with it.
        settings: Arguments and variables that the code runs with, beside the spec's.
    """

    attempt: int
    slots: tuple[MachineInfo, ...]
    code_version: str
    code_directory: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    def machine_names(self) -> list[str]:
        """The assigned machines' names, by slot."""
        return [info.machine for info in self.slots]
