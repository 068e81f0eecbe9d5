"""NCCL, gloo and torch.distributed: results, InfiniBand completions, time-outs, lost peers."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_RESULTS = "NCCL API: ncclResult_t; NCCL source"

_CONFIG = Reading(Symptom.NETWORK_ERROR, Label.INFRASTRUCTURE, Action.ROLLBACK, 0.6)
_PROGRAM = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.75)
_UNSURE = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.CHECK, 0.45)
_INTERNAL = Reading(Symptom.CUDA_ERROR, Label.UNKNOWN, Action.CHECK, 0.4)
_SHM = Reading(Symptom.CONTAINER_ERROR, Label.INFRASTRUCTURE, Action.ROLLBACK, 0.8)

RULES: tuple[Rule, ...] = (
    Rule(
        "shared memory too small",
        r"(?:no space left|enospc|posix_fallocate|shared memory segment|ftruncate|mmap).*/dev/shm"
        r"|/dev/shm.*(?:no space left|too small|fail|error|size \d+)|insufficient shared memory"
        r"|shm(?:at|open|get).*no space|while (?:creating|extending) shared memory",
        Standing.PROOF,
        _SHM,
        "the container's /dev/shm is too small",
        "NCCL troubleshooting: shared memory; torch: DataLoader",
        (
            "NCCL WARN Error: failed to extend /dev/shm/nccl-Fk2 to 9637892 bytes, error: No space"
            " left on device (28)",
            "RuntimeError: unable to write to file </torch_77_1>: insufficient shared memory (shm)",
        ),
    ),
    Rule(
        "collectives differ",
        r"detected mismatch between collectives|collective\w* mismatch|mismatched collective"
        r"|(?:type|size|dtype|size_or_syntax|collective_type|collective_dtype)_mismatch"
        r"|collectives? .*(?:do not|don't|does not) match|mismatch(?:ed)? (?:sizes|types|dtypes)"
        r"|op\.?type.*(?:differs?|mismatch)|mixed (?:dtypes|sizes)",
        Standing.PROOF,
        Reading(Symptom.JOB_HANG, Label.USER_CODE, Action.ROLLBACK, 0.85),
        "ranks called different collectives, which a program does and a machine does not",
        "torch: DETAIL debug level, torchfrtrace",
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running"
            " collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE)",
        ),
    ),
    Rule(
        "nccl usage",
        r"ncclinvalid(?:usage|argument)|invalid (?:usage|argument).*nccl"
        r"|nccl error.*invalid (?:usage"
        r"|argument)|duplicate gpu detected|nccl warn (?:invalid|.*: invalid)(?! (?:config|net))",
        Standing.CAUSE,
        _PROGRAM,
        "NCCL was called wrongly",
        _RESULTS,
        ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",),
    ),
    Rule(
        "nccl configuration",
        r"no socket interface found|mismatch in rank count|unsupported gloo device"
        r"|unable to (?:resolve hostname"
        r"|find address for)|no (?:usable|matching) (?:socket )?interface|nccl_(?:socket_ifname"
        r"|ib_hca).*(?:not found|no match|mismatch)|nccl warn.*mismatched.*version"
        r"|version mismatch.*nccl"
        r"|nccl.*version mismatch|(?:undefined symbol|symbol lookup error).*nccl|nccl_version"
        r"|invalid config"
        r"|failed to (?:initialize|find) (?:any )?net(?:work)? plugin|plugin.*abi",
        Standing.CAUSE,
        _CONFIG,
        "NCCL's network is configured wrongly for these machines",
        "NCCL environment variables",
        ("node:7:7 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",),
    ),
    Rule(
        "nccl system error",
        r"ncclsystemerror|unhandled system error|nccl.*system call.*fail",
        Standing.SIGN,
        _UNSURE,
        "a system call of NCCL failed",
        _RESULTS,
        ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed",),
    ),
    Rule(
        "nccl internal error",
        r"ncclinternalerror|nccl.*internal (?:check|error)",
        Standing.SIGN,
        _INTERNAL,
        "NCCL failed inside",
        _RESULTS + "; paper, section 4.1: tests of the GPU, in a machine, between machines",
        ("ncclInternalError: Internal check failed.",),
    ),
    Rule(
        "nccl cuda error",
        r"ncclunhandledcudaerror|unhandled cuda error",
        Standing.CONSEQUENCE,
        _INTERNAL,
        "a CUDA call of NCCL failed; the cause is in another line",
        _RESULTS,
        ("ncclUnhandledCudaError: Call to CUDA function failed.",),
    ),
)
