"""The words that every process speaks in: symptoms, verdicts, rungs, checks, outcomes, phases."""

from __future__ import annotations

from enum import StrEnum


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

    UPDATE = "update"
    EVICT = "evict"
    CHECKS = "checks"
    REATTEMPT = "reattempt"
    ROLLBACK = "rollback"
    REPLAY = "replay"
    PAGE = "page"


class Spent(StrEnum):
    """What a moment of a job's time was spent on."""

    PRODUCTIVE = "productive"
    REDONE = "redone"
    DETECT = "detect"
    LOCATE = "locate"
    RESTART = "restart"
    # Training stands until a checkpoint is far enough, or takes one in its own way.
    CHECKPOINT = "checkpoint"
    HELD = "held"
    UPDATE = "update"
    # Before the first step, and after the last.
    START = "start"
    END = "end"


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


class Notice(StrEnum):
    """What somebody is told of an incident through a webhook."""

    OPENED = "opened"
    NEEDS_APPROVAL = "needs_approval"
    CLOSED = "closed"
    PAGED = "paged"
    """A person is needed, or should know at once: a machine is missing, code was taken back."""


class Observer(StrEnum):
    """Who raised an alert."""

    AGENT = "agent"
    ANALYZER = "analyzer"
    CONTROLLER = "controller"
    CLUSTER = "cluster"
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
