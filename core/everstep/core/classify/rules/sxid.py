"""SXids and other words of NVSwitch, of the fabric manager and of NVLink's management."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import QUIET, Reading, Rule, Standing

_SOURCE = "NVIDIA, Fabric Manager user guide: NVSwitch SXids"
_BROKEN = Reading(Symptom.GPU_UNAVAILABLE, Label.GPU_HARDWARE, Action.EVICT, 0.75)
_FOLLOWS = Reading(Symptom.CUDA_ERROR, Label.UNKNOWN, Action.CHECK, 0.3)
_UNSURE = Reading(Symptom.GPU_UNAVAILABLE, Label.INFRASTRUCTURE, Action.CHECK, 0.5)

_HARMLESS_CODES = (
    r"(?:1000[1245]|110(?:12|2[123])|120(?:21|23)|150(?:08|11)|190(?:49|55|57|59|62|65|68|71)"
    r"|2000[1]|2400[123])\b"
)

RULES: tuple[Rule, ...] = (
    Rule(
        "no switch to manage",
        r"nv_warn_nothing_to_do",
        Standing.CONTEXT,
        QUIET,
        "the fabric manager found no NVSwitch: this machine has none",
        "NVIDIA fabric manager user guide",
        ("request to query NVSwitch device information failed: [NV_WARN_NOTHING_TO_DO]",),
    ),
    Rule(
        "sxid corrected",
        r"\bsxid\b[^)]*\): *" + _HARMLESS_CODES + r"(?!.*(?:, fatal|severity 1))",
        Standing.CONTEXT,
        QUIET,
        "an NVSwitch corrected an error, or says how warm it is",
        _SOURCE,
        ("nvidia-nvswitch2: SXid (PCI:0000:c1:00.0): 20001, Non-fatal, Link 30 TX Replay Error",),
    ),
    Rule(
        "sxid non-fatal",
        r"\bsxid\b.*(?:non-?fatal|severity 0)|nvswitch non-?fatal error",
        Standing.CONSEQUENCE,
        _FOLLOWS,
        "an NVSwitch reports an error that it survived, often the far end's",
        _SOURCE,
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 30 LTSSM Fault Up",),
    ),
    Rule(
        "sxid fatal",
        r"\bsxid\b.*(?:\bfatal|severity 1|\): [12]\d{4},)|nvswitch (?:always )?fatal error"
        r"|nvswitch\w*:? .*(?:\bfatal\b|failed to (?:initiali[sz]e|train))"
        r"|nvlink (?:connection|fabric).*(?:failed|degraded)|degraded (?:nvswitch|nvlink)",
        Standing.PROOF,
        _BROKEN,
        "an NVSwitch failed",
        _SOURCE,
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 12 Minion Link DLREQ",
            "detected NVSwitch fatal error 20034 on fid:0 on NVSwitch pci bus id:00000000:c4:00.0",
        ),
    ),
    Rule(
        "fabric not ready",
        r"system not yet initialized|cuda_?error_?system_?not_?ready|system_not_ready"
        r"|fabric ?manager.*(?:fail|not running|inactive|not activ|or nvswitches)"
        r"|fabric state *: *(?:in progress|failure)"
        r"|nvlink sharp.*(?:fail|error)|nvls.*cuda (?:driver )?(?:error|failure) (?:1|401|802)\b"
        r"|failed to bind nv\w*|multicast.*(?:bind|group).*(?:fail|error)|imex.*(?:fail|error)",
        Standing.CAUSE,
        _UNSURE,
        "the machine's fabric manager is not running, or of another version",
        "CUDA driver API: CUDA_ERROR_SYSTEM_NOT_READY (802); NCCL: NVLink SHARP",
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet"
            " initialized",
        ),
    ),
)
