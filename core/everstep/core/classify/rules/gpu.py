"""GPUs that the driver or its tools no longer reach, apart from Xids."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import QUIET, Reading, Rule, Standing

_LOST = Reading(Symptom.GPU_UNAVAILABLE, Label.GPU_HARDWARE, Action.EVICT, 0.85)
_DRIVER = Reading(Symptom.GPU_UNAVAILABLE, Label.INFRASTRUCTURE, Action.EVICT, 0.7)
_MEMORY = Reading(Symptom.GPU_MEMORY_ERROR, Label.GPU_HARDWARE, Action.EVICT, 0.9)
_LINK = Reading(Symptom.CUDA_ERROR, Label.GPU_HARDWARE, Action.EVICT, 0.8)
_ACCESS = Reading(Symptom.CONTAINER_ERROR, Label.INFRASTRUCTURE, Action.RETRY, 0.6)
_IMAGE = Reading(Symptom.CONTAINER_ERROR, Label.INFRASTRUCTURE, Action.ROLLBACK, 0.65)
_HOT = Reading(Symptom.MFU_DECLINE, Label.GPU_HARDWARE, Action.EVICT, 0.65)
_HELD = Reading(Symptom.GPU_UNAVAILABLE, Label.INFRASTRUCTURE, Action.RETRY, 0.6)
_UNSURE = Reading(Symptom.GPU_UNAVAILABLE, Label.INFRASTRUCTURE, Action.CHECK, 0.5)

RULES: tuple[Rule, ...] = (
    Rule(
        "gpu lost",
        r"fallen off the bus|gpu is lost|gpu_is_lost|gpu_?lost\b|nvmlerror_gpuislost"
        r"|(?:gpu|device) lost from (?:the )?bus|gpu has been lost"
        r"|nvrm: .*\bstatus[ =]0x0*f\b|gpu (?:\S+ )?(?:is|was) missing from",
        Standing.PROOF,
        _LOST,
        "a GPU is gone from the PCIe bus",
        "NVML API: NVML_ERROR_GPU_IS_LOST; Xid 79",
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", "NVRM: GPU has fallen off the bus."),
    ),
    Rule(
        "request refused by the driver",
        r"nvrm: rpcrmapi\w+_gsp: .*failed.*\bstatus=0x(?!0*(?:62|65)\b)[0-9a-f]+",
        Standing.CONTEXT,
        QUIET,
        "the GPU's system processor answered a program's request with no",
        "NVIDIA open-gpu-kernel-modules: nvstatuscodes.h (0x0f lost, 0x62 reset, 0x65 time-out)",
        ("NVRM: rpcRmApiAlloc_GSP: GspRmAlloc failed: hClient=0xc1d1; status=0x00000051",),
    ),
    Rule(
        "gpu without handle",
        r"unable to determine the device handle for gpu|rminitadapter failed|rm_?init_?adapter fail"
        r"|gpu requires (?:a )?reset|(?:nvml_error|nv_err)_reset_required|reset required \[|\berr!"
        r"|nvrm: .*(?:fsp command timed out|gsp\b.*(?:fail|time-?out|timed out|halt|crash)"
        r"|marked for reset|cannot initialize gsp)|nvidia(?: gpu)? prob(?:e"
        r"|ing) (?:routine )?failed"
        r"|nvml_error_(?:gpu_not_found|irq_issue)|nvrm: .*gpu .*(?:not responding|is in an? (?:bad"
        r"|error))"
        r"|(?:nvidia|amdgpu): probe of \S+ failed"
        r"|fatal error during gpu init|unhealthy.*(?:gpu-|nvidia\.com/gpu|xid)"
        r"|(?:gpu-|nvidia\.com/gpu|xid).*\bunhealthy",
        Standing.PROOF,
        _LOST,
        "the driver cannot talk to a GPU",
        "NVML API: error codes; NVIDIA driver README",
        (
            "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
            "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x24:0x65:1416)",
            "| ERR!   ERR!  ERR!    ERR! / ERR! |      N/A       |    ERR!      Default |",
        ),
    ),
    Rule(
        "driver mismatch",
        r"driver/library version mismatch|nvml_error_lib_rm_version_mismatch"
        r"|system has unsupported display driver|api mismatch: the client has the version",
        Standing.PROOF,
        _DRIVER,
        "the driver was replaced under a running machine",
        "NVML API: NVML_ERROR_LIB_RM_VERSION_MISMATCH; CUDA error 803",
        ("Failed to initialize NVML: Driver/library version mismatch",),
    ),
    Rule(
        "driver absent on the machine",
        r"nvidia-smi has failed because it couldn't communicate|nvml error: driver not loaded"
        r"|driver rpc error|failed to initialize nvml: driver not loaded",
        Standing.CAUSE,
        _DRIVER,
        "the machine's driver is not loaded or does not answer",
        "NVIDIA container toolkit troubleshooting",
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",),
    ),
    Rule(
        "device access revoked",
        r"failed to initialize nvml: (?:unknown error|insufficient permissions)"
        r"|cuda unknown error - this may be due to an incorrectly set up environment",
        Standing.CAUSE,
        _ACCESS,
        "the container lost its right to the device (a systemd reload rewrites device cgroups)",
        "NVIDIA container toolkit troubleshooting",
        ("Failed to initialize NVML: Unknown Error",),
    ),
    Rule(
        "memory uncorrectable",
        r"uncorrectable ecc|ecc uncorrectable|cuda_error_ecc_uncorrectable|cudaerrorecc\w+"
        r"|row remapp\w+ fail\w*(?! *occurred *: *no)(?! *: *(?:no|0))|\b(?:a dbe|dbe\(s\)"
        r"|dbes?) (?:\([^)]*\) )?(?:was |were )?detected"
        r"|uncorrectable (?:dram|sram|memory|double bit)|uncorrectable memory error"
        r"|remapping failure occurred *: *yes|double[- ]bit (?:ecc )?error"
        r"|^(?!.*aggregate).*\bdram uncorrectable\W+[1-9]|volatile.*uncorrect\w+ *: *[1-9]"
        r"|dbe\b.*\b[1-9]\d* (?:error|count)",
        Standing.PROOF,
        _MEMORY,
        "GPU memory has an error that cannot be corrected",
        "CUDA driver API: CUDA_ERROR_ECC_UNCORRECTABLE (214); NVIDIA GPU memory error management",
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered",),
    ),
    Rule(
        "nvlink uncorrectable",
        r"uncorrectable nvlink|nvlink_uncorrectable|nvlink fatal|nvlink:? fatal error"
        r"|cuda_?error_?contained|invalid access of peer gpu memory over nvlink"
        r"|cudaerrornvlink\w+|nvlink.*(?:crc|replay|recovery) error.*(?:threshold|exceed)",
        Standing.PROOF,
        _LINK,
        "the NVLink fabric failed; the first to say so is nearest to it",
        "CUDA driver API: CUDA_ERROR_NVLINK_UNCORRECTABLE (220), CUDA_ERROR_CONTAINED (221)",
        ("jax error: CUDA_ERROR_NVLINK_UNCORRECTABLE: uncorrectable NVLink error detected",),
    ),
    Rule(
        "no device",
        r"no cuda-capable device is detected|cuda_?error_?no_?device|no devices were found"
        r"|no cuda gpus are available",
        Standing.SIGN,
        _UNSURE,
        "the process sees no GPU: hidden from it, or gone",
        "CUDA driver API: CUDA_ERROR_NO_DEVICE (100)",
        ("RuntimeError: No CUDA GPUs are available",),
    ),
    Rule(
        "device busy",
        r"device or resource busy|\bebusy\b|errno 16\b|devices? is/are busy or unavailable"
        r"|device\(s\) is/are busy|cuda_?error_?devices?_?unavailable",
        Standing.CAUSE,
        _HELD,
        "the device is held by another process, often one that an earlier attempt left",
        "CUDA driver API: CUDA_ERROR_DEVICE_UNAVAILABLE (46); errno(3): EBUSY",
        (
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
            " CUDA-capable device(s) is/are busy or unavailable",
        ),
    ),
    Rule(
        "image does not fit the driver",
        r"cuda driver version is insufficient|nvidia driver on your system is too old"
        r"|cudaerror(?:insufficientdriver|nokernelimage\w*|compat\w+|unsupportedptx\w*|jit\w+)"
        r"|cuda_error_(?:no_binary_for_gpu|invalid_ptx|unsupported_ptx_version|jit_\w+"
        r"|invalid_image)"
        r"|cli\S*: requirement error|device kernel image is invalid|ptx jit compil\w+ (?:failed"
        r"|error)"
        r"|found no nvidia driver|libcuda\.so\.1: cannot open"
        r"|no kernel image is available|forward compatibility was attempted|the provided ptx was"
        r"|not compatible with the current pytorch installation|unsatisfied condition: cuda",
        Standing.CAUSE,
        _IMAGE,
        "the image was built for another driver or GPU",
        "CUDA compatibility guide; errors 35, 209, 222, 804",
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device",),
    ),
    Rule(
        "diagnostics failed",
        r"\|? *(?:pcie|gpu memory|memory bandwidth|diagnostic|memtest|targeted \w+|sm stress"
        r"|nvbandwidth"
        r"|pulse test|eud|deployment|software|hardware)\b[^|]*\| *fail|\bdcgm_fr_\w+"
        r"|overall health: *(?:failure|fail)|drain the gpu|field diag\w*.*fail",
        Standing.CAUSE,
        _DRIVER,
        "a check of the GPUs failed",
        "NVIDIA DCGM: diagnostics and health checks",
        ("| GPU Memory                | Fail - GPU: 4                                  |",),
    ),
    Rule(
        "gpu slowed down",
        r"(?:hw|hardware)[ _]?(?:thermal)?[ _]?slowdown *[:=] *(?:active|1|true)"
        r"|hw power brake(?: slowdown)? *[:=] *active|thermal violation"
        r"|gpu.*(?:overheat|too hot)|clocks?_?(?:throttle|event)_?reasons?.*hw_(?:thermal|slowdown)"
        r"|sw thermal slowdown *: *active",
        Standing.CAUSE,
        _HOT,
        "the GPU slows itself down for heat or power",
        "NVML API: clocks event reasons",
        ("        HW Thermal Slowdown               : Active",),
    ),
)
