"""CUDA, cuBLAS and cuDNN as a training process sees them. Machine-specific codes are in `gpu`."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_CUDA = "CUDA runtime and driver API: error codes"

_OOM = Reading(Symptom.CUDA_OOM, Label.USER_CODE, Action.ROLLBACK, 0.8)
_PROGRAM = Reading(Symptom.CUDA_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.8)
_ILLEGAL = Reading(Symptom.CUDA_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.5)
_STICKY = Reading(Symptom.CUDA_ERROR, Label.UNKNOWN, Action.CHECK, 0.4)
_HARDWARE = Reading(Symptom.CUDA_ERROR, Label.GPU_HARDWARE, Action.CHECK, 0.5)
_LIBRARY = Reading(Symptom.CUDA_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.5)

RULES: tuple[Rule, ...] = (
    Rule(
        "absurd allocation",
        r"tried to allocate (?:more than )?\d[\d.]* ?(?:eb|eib|pb|pib|eb memory)\b",
        Standing.CONSEQUENCE,
        _STICKY,
        "no program asks for so much: the size was garbage after something else failed",
        "torch: CUDACachingAllocator",
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",),
    ),
    Rule(
        "pinned memory full",
        r"cudahostalloc|(?:pinned|page-locked) (?:host )?memory.*(?:fail|cannot|unable)",
        Standing.CAUSE,
        Reading(Symptom.HOST_OOM, Label.HOST, Action.RETRY, 0.7),
        "the machine has no memory left to give to the GPU",
        "CUDA runtime API: cudaHostAlloc",
        ("RuntimeError: CUDA error: out of memory (cudaHostAlloc failed to allocate 3 bytes)",),
    ),
    Rule(
        "device memory full",
        r"cuda out of memory|outofmemoryerror|cuda_error_out_of_memory"
        r"|cuda failure (?:\d+ )?'?out of"
        r" memory|cuda error: out of memory|failed to cuda (?:calloc|malloc)"
        r"|cudaerrormemoryallocation"
        r"|hip out of memory|resource_exhausted: .*(?:memory|oom)|tried to allocate [\d.]+ [gm]i?b",
        Standing.CAUSE,
        _OOM,
        "the program needs more device memory than there is",
        _CUDA + " (2)",
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a"
            " total capacity of 79.11 GiB",
            "NCCL WARN Cuda failure 2 'out of memory'",
        ),
    ),
    Rule(
        "device assert",
        r"device-side assert|assertion .*failed\.?\s*$|indexing\.cu|scattergatherkernel\.cu"
        r"|cudaerrorassert|index out of bounds",
        Standing.CAUSE,
        _PROGRAM,
        "an index or a value was out of range in a kernel",
        _CUDA + " (710)",
        (
            "/pytorch/aten/src/ATen/native/cuda/Loss.cu:242: nll_loss: block: [0,0,0], thread:"
            " [3,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        ),
    ),
    Rule(
        "launch wrong",
        r"misaligned address|too many resources requested|invalid (?:device function|configuration"
        r" argument|resource handle|device ordinal)|cuda error: invalid argument"
        r"|operation not permitted"
        r" when stream is capturing|initialization error.*fork|re-initialize cuda in forked"
        r"|peer access"
        r" is not supported|cublas_status_(?:invalid_value|not_supported|arch_mismatch)"
        r"|cudnn_status_(?:bad_param|not_supported|arch_mismatch)|invalid memcpy"
        r"|context is destroyed",
        Standing.CAUSE,
        _PROGRAM,
        "the program called CUDA wrongly",
        _CUDA + " (1, 9, 98, 101, 400, 701, 716)",
        (
            "RuntimeError: CUDA error: misaligned address",
            "RuntimeError: CUDA error: invalid device ordinal",
        ),
    ),
    Rule(
        "handle not created",
        r"cublas_status_(?:alloc_failed|not_initialized)|cudnn_status_(?:not_initialized"
        r"|alloc_failed)"
        r"|cublascreate|cusolver_status_internal_error|cufft_(?:alloc|internal)\w*",
        Standing.SIGN,
        _LIBRARY,
        "a library got no handle: device memory is full, or an earlier kernel failed",
        "cuBLAS and cuDNN API: status codes",
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling"
            " `cublasCreate(handle)`",
        ),
    ),
    Rule(
        "illegal access",
        r"illegal memory access|cuda_error_illegal_address|an illegal (?:address|access)",
        Standing.SIGN,
        _ILLEGAL,
        "a kernel touched memory that is not its own: a program's error two times in three",
        _CUDA + " (700); paper, Table 2",
        ("RuntimeError: CUDA error: an illegal memory access was encountered",),
    ),
    Rule(
        "kernel failed",
        r"unspecified launch failure|launch timed out|cuda_error_launch_failed|hardware stack error"
        r"|illegal instruction (?:was|encountered)|invalid program counter|an illegal instruction"
        r"|cudnn_status_(?:internal_error|execution_failed|mapping_error)|cudnn error"
        r"|cublas_status_(?:execution_failed|internal_error|mapping_error)"
        r"|memory access fault by gpu"
        r"|hsa_status_error|hip error|amdgpu.*\bring \S+ timeout|gpu node-\d+ .*gpu hang",
        Standing.SIGN,
        _HARDWARE,
        "a kernel failed without saying why",
        _CUDA + " (702, 714, 715, 718, 719); cuDNN and cuBLAS API",
        (
            "RuntimeError: CUDA error: unspecified launch failure",
            "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        ),
    ),
    Rule(
        "driver shutting down",
        r"driver shutting down|cudaerrorcudartunloading|cuda_error_deinitialized",
        Standing.CONSEQUENCE,
        _STICKY,
        "said while a process ends",
        _CUDA + " (4)",
        ("CUDA error: driver shutting down",),
    ),
    Rule(
        "cuda error announced",
        r"\[cuda error\] at|cuda (?:error|failure) (?:at|in) (?:file |line )?[\w/.]+:\d+\W*$"
        r"|cuda kernel errors might be asynchronously|check failed: .*cudasuccess\W*$",
        Standing.CONSEQUENCE,
        _STICKY,
        "the error itself is in another line",
        _CUDA,
        ("[CUDA ERROR] at file train.cu:1238:",),
    ),
    Rule(
        "cuda error other",
        r"cuda (?:runtime )?(?:error|failure)\b|cuda_error_\w+|cudaerror\w+|accelerator error",
        Standing.SIGN,
        _STICKY,
        "a CUDA call failed",
        _CUDA,
        ("RuntimeError: CUDA error: unknown error",),
    ),
)
