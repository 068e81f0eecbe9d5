"""What an agent has to know of its job and its machine to serve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from everstep.core.stored import StoragePolicy


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """One machine's part in a job; a new code version changes nothing here.

    Attributes:
        job: Name of the job.
        machine: Name of the machine, unique in the job.
        host: Address to listen on, under which the other machines reach this one.
        directory: Where logs and the journal lie; this agent's alone.
        command: What a rank runs, in the code directory; the first word `python` means this
            interpreter.
        code_directory: The code at the time of the agent's start, whose imports are made ahead.
        output_dir: Where ranks put what they produce.
        parallelism: Sizes and order, as `tp=2,pp=2,dp=2;order=tp-pp-dp`.
        gpus_per_machine: Ranks on a machine, > 0.
        secret: The job's secret; never shown to a rank.
        environment: The spec's variables for ranks; they win over everything else.
        prewarm: Modules to import ahead, besides those that the script's source names.
        backup_timeout_s: How long a step may wait for its copy on the other machine, > 0.
        backup_bytes_per_s: How much backup traffic the machine may send, > 0, or None for no limit.
        step_pattern: What a line in a rank's log says of its steps (`core.senses.step_lines`); None
            reads no logs.
        prewarm_timeout_s: How long imports may take before ranks start as fresh programs, > 0.
        faults_directory: Where faults lie that a run asked for (`everstep.selfcheck.faults`), or
            None, so that no rank and no check ever looks for one.
        cgroup: Cgroup that the ranks run in, as /proc/PID/cgroup has it; empty for the root.
        storage: The storage tier, or None.
        replicated: Keys of the state whose tensors are equal on all ranks of a DP group, and kept
            once in it.
        pod: Name of the pod that this is; empty outside of Kubernetes.
        pod_uid: Its uid, likewise.
        prepare: What makes a code version ready, run in a copy of it; empty: nothing has to.
        prepare_timeout_s: How long that may take, > 0.
    """

    job: str
    machine: str
    host: str
    directory: Path
    command: tuple[str, ...]
    code_directory: Path
    output_dir: Path
    parallelism: str
    gpus_per_machine: int
    secret: bytes = field(repr=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    prewarm: tuple[str, ...] = ()
    backup_timeout_s: float = 30.0
    backup_bytes_per_s: float | None = None
    step_pattern: str | None = None
    prewarm_timeout_s: float = 300.0
    faults_directory: Path | None = None
    cgroup: str = ""
    storage: StoragePolicy | None = None
    replicated: tuple[str, ...] = ()
    pod: str = ""
    pod_uid: str = ""
    prepare: tuple[str, ...] = ()
    prepare_timeout_s: float = 600.0

    @property
    def owner(self) -> str:
        """What marks the processes of this machine on its host."""
        return str(self.directory.resolve())
