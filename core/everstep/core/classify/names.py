"""The words in which a classification speaks, and how they relate to the rest of Everstep."""

from __future__ import annotations

from enum import StrEnum

from everstep.core import vocabulary


class Kind(StrEnum):
    """What sort of text the evidence is."""

    RANK_LOG = "rank_log"
    KERNEL_LOG = "kernel_log"
    STACK_DUMP = "stack_dump"
    FLIGHT_RECORDER = "flight_recorder"
    METRICS = "metrics"
    INCIDENT_REPORT = "incident_report"
    MIXED = "mixed"


class Symptom(StrEnum):
    """What was seen."""

    CUDA_ERROR = "cuda_error"
    GPU_MEMORY_ERROR = "gpu_memory_error"
    GPU_UNAVAILABLE = "gpu_unavailable"
    JOB_HANG = "job_hang"
    NCCL_TIMEOUT = "nccl_timeout"
    NETWORK_ERROR = "network_error"
    NAN = "nan"
    LOSS_SPIKE = "loss_spike"
    MFU_DECLINE = "mfu_decline"
    OS_KERNEL_FAULT = "os_kernel_fault"
    HOST_OOM = "host_oom"
    CUDA_OOM = "cuda_oom"
    STORAGE_ERROR = "storage_error"
    DISK_FULL = "disk_full"
    CHECKPOINT_ERROR = "checkpoint_error"
    CONTAINER_ERROR = "container_error"
    CODE_ERROR = "code_error"
    DATA_ERROR = "data_error"
    PROCESS_CRASH = "process_crash"
    PREEMPTION = "preemption"
    NONE = "none"


class Label(StrEnum):
    """Where the fault was, which need not be where it showed."""

    USER_CODE = "user_code"
    INFRASTRUCTURE = "infrastructure"
    GPU_HARDWARE = "gpu_hardware"
    NETWORK = "network"
    STORAGE = "storage"
    HOST = "host"
    DATA = "data"
    TRANSIENT = "transient"
    MANUAL = "manual"
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What to do first. ROLLBACK also stands for a fix of the job's configuration or image."""

    EVICT = "evict_machine"
    CHECK = "stop_time_checks"
    RETRY = "retry"
    ROLLBACK = "rollback_code"
    FIX_DATA = "fix_data"
    NONE = "none"


TABLE_1: dict[Symptom, vocabulary.Symptom | None] = {
    Symptom.CUDA_ERROR: vocabulary.Symptom.CUDA_ERROR,
    Symptom.GPU_MEMORY_ERROR: vocabulary.Symptom.GPU_MEMORY_ERROR,
    Symptom.GPU_UNAVAILABLE: vocabulary.Symptom.GPU_UNAVAILABLE,
    Symptom.JOB_HANG: vocabulary.Symptom.JOB_HANG,
    Symptom.NCCL_TIMEOUT: vocabulary.Symptom.JOB_HANG,
    Symptom.NETWORK_ERROR: vocabulary.Symptom.INFINIBAND_ERROR,
    Symptom.NAN: vocabulary.Symptom.NAN_VALUE,
    Symptom.LOSS_SPIKE: vocabulary.Symptom.NAN_VALUE,
    Symptom.MFU_DECLINE: vocabulary.Symptom.MFU_DECLINE,
    Symptom.OS_KERNEL_FAULT: vocabulary.Symptom.OS_KERNEL_PANIC,
    Symptom.HOST_OOM: vocabulary.Symptom.CPU_OOM,
    Symptom.CUDA_OOM: vocabulary.Symptom.CUDA_ERROR,
    Symptom.STORAGE_ERROR: vocabulary.Symptom.FILESYSTEM_MOUNT,
    Symptom.DISK_FULL: vocabulary.Symptom.DISK_SPACE,
    Symptom.CHECKPOINT_ERROR: vocabulary.Symptom.FILESYSTEM_MOUNT,
    Symptom.CONTAINER_ERROR: vocabulary.Symptom.CONTAINER_ERROR,
    Symptom.CODE_ERROR: vocabulary.Symptom.CODE_ERROR,
    Symptom.DATA_ERROR: vocabulary.Symptom.CODE_DATA_ADJUSTMENT,
    Symptom.PROCESS_CRASH: vocabulary.Symptom.PROCESS_CRASH,
    Symptom.PREEMPTION: vocabulary.Symptom.CODE_DATA_ADJUSTMENT,
    Symptom.NONE: None,
}
"""The row of the paper's Table 1 (or the job's own symptom) that stands for a classifier's word.

The classifier's words are finer where the first action differs (device and host memory), coarser
where a log does not tell (which service of storage it was)."""
