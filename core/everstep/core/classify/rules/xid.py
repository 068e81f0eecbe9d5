"""Xids: what NVIDIA's driver writes to the kernel log when a GPU misbehaves.

One entry a code. What depends on several lines (13, 31 and 45, and the fabric's 137) is settled in
`xids`, by GPU and time. Codes that the table lacks fall to the last rule: not known.
"""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import QUIET, Reading, Rule, Standing

_SOURCE = "NVIDIA, Xid Errors: catalogue and analysis"
_AT = r"(?<!previous )\bxid(?:criticalerror: xid| error| event| code)?\s*(?:\(pci:[^)]*\))?[\s:=#]*"

_MEMORY = Reading(Symptom.GPU_MEMORY_ERROR, Label.GPU_HARDWARE, Action.EVICT, 0.9)
_LOST = Reading(Symptom.GPU_UNAVAILABLE, Label.GPU_HARDWARE, Action.EVICT, 0.9)
_BROKEN = Reading(Symptom.GPU_UNAVAILABLE, Label.GPU_HARDWARE, Action.EVICT, 0.75)
_PROGRAM = Reading(Symptom.CUDA_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.55)
_SUSPECT = Reading(Symptom.CUDA_ERROR, Label.GPU_HARDWARE, Action.CHECK, 0.5)
_FOLLOWS = Reading(Symptom.CUDA_ERROR, Label.UNKNOWN, Action.CHECK, 0.3)

_CODES: tuple[tuple[tuple[int, ...], Standing, Reading, str], ...] = (
    ((48,), Standing.PROOF, _MEMORY, "uncorrectable (double-bit) memory error"),
    ((95,), Standing.PROOF, _MEMORY, "uncontained uncorrectable memory error"),
    (
        (94,),
        Standing.PROOF,
        _MEMORY,
        "contained uncorrectable memory error; the row waits for a reset",
    ),
    ((64,), Standing.PROOF, _MEMORY, "a row or page could not be retired"),
    ((140, 171, 172), Standing.PROOF, _MEMORY, "unrecovered memory error"),
    ((57, 58), Standing.PROOF, _MEMORY, "frame buffer link or memory error"),
    ((79,), Standing.PROOF, _LOST, "the GPU has fallen off the bus"),
    ((119, 120), Standing.PROOF, _LOST, "the GPU's system processor does not answer"),
    ((143,), Standing.PROOF, _LOST, "the GPU did not initialise"),
    ((54,), Standing.PROOF, _BROKEN, "auxiliary power is not connected"),
    ((74,), Standing.PROOF, _BROKEN, "NVLink error"),
    ((110,), Standing.PROOF, _BROKEN, "security fault"),
    ((155, 158, 167), Standing.PROOF, _BROKEN, "the GPU or its link failed for good"),
    ((157, 161), Standing.PROOF, _BROKEN, "a broken resource could not be retired"),
    ((136, 173), Standing.PROOF, _BROKEN, "a chip-to-chip or NVLink link failed"),
    ((46, 62), Standing.PROOF, _BROKEN, "the GPU or its power unit has halted; it needs a reset"),
    ((109,), Standing.SIGN, _SUSPECT, "a context switch timed out; the GPU needs a reset"),
    ((13,), Standing.SIGN, _PROGRAM, "exception in the graphics or compute engine"),
    ((31,), Standing.SIGN, _PROGRAM, "GPU page fault: an address that is not mapped"),
    ((43,), Standing.CONSEQUENCE, _PROGRAM, "a channel was reset after a fault of the program"),
    ((45,), Standing.CONTEXT, QUIET, "channels cleaned up after something else, such as a kill"),
    ((8, 11, 32, 38, 44, 61, 66, 68, 69, 80, 92), Standing.SIGN, _SUSPECT, "engine or bus error"),
    ((122, 123, 124, 125), Standing.SIGN, _SUSPECT, "the board's flash memory could not be used"),
    ((137,), Standing.SIGN, _SUSPECT, "privilege error on an NVLink access"),
    ((63,), Standing.CONTEXT, QUIET, "a row or page was retired, as intended"),
    ((121, 156, 160, 93, 162), Standing.CONTEXT, QUIET, "corrected or recorded; nothing to do"),
)


def _rule(codes: tuple[int, ...], standing: Standing, reading: Reading, meaning: str) -> Rule:
    numbers = "|".join(map(str, codes))
    return Rule(
        name=f"xid {'/'.join(map(str, codes))}",
        pattern=_AT + rf"(?:{numbers})\b(?!\.)",
        standing=standing,
        reading=reading,
        meaning=meaning,
        source=_SOURCE,
        examples=(f"NVRM: Xid (PCI:0000:3b:00): {codes[0]}, pid=77, name=python, Ch 00000010",),
    )


RULES: tuple[Rule, ...] = (
    *(_rule(*entry) for entry in _CODES),
    Rule(
        "xid 154 reset",
        _AT + r"154\b(?:.* to 0x\w+)? *\((?:gpu reset|node reboot|drain)",
        Standing.PROOF,
        _BROKEN,
        "the driver asks for a reset or a reboot",
        _SOURCE,
        (
            "NVRM: Xid (PCI:0000:9a:00): 154, GPU recovery action changed from 0x0 (None) to 0x2"
            " (Node Reboot Required)",
        ),
    ),
    Rule(
        "xid 154 none",
        _AT + r"154\b",
        Standing.CONTEXT,
        QUIET,
        "the recovery action was cleared",
        _SOURCE,
        (
            "NVRM: Xid (PCI:0000:9a:00): 154, GPU recovery action changed from 0x1 (GPU Reset"
            " Required) to 0x0 (None)",
        ),
    ),
    Rule(
        "xid nvlink5 nonfatal",
        _AT + r"1(?:4[4-9]|50)\b.*\bnon-?fatal",
        Standing.SIGN,
        _SUSPECT,
        "NVLink reports an error that it survived",
        _SOURCE,
        ("NVRM: Xid (PCI:0000:04:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 03",),
    ),
    Rule(
        "xid nvlink5 fatal",
        _AT + r"1(?:4[4-9]|50)\b",
        Standing.PROOF,
        _BROKEN,
        "NVLink failed",
        _SOURCE,
        ("NVRM: Xid (PCI:0000:04:00): 145, RLW_CTRL Fatal XC1 i0 Link 07 (0x0 0x0)",),
    ),
    Rule(
        "sxid non-fatal",
        r"\bsxid\b.*(?:non-?fatal|severity 0)",
        Standing.CONSEQUENCE,
        _FOLLOWS,
        "an NVSwitch reports an error that it survived, often the far end's",
        "NVIDIA, Fabric Manager user guide: NVSwitch SXids",
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 30 LTSSM Fault Up",),
    ),
    Rule(
        "sxid fatal",
        r"\bsxid\b.*(?:\bfatal|severity 1|\): [12]\d{4},)",
        Standing.PROOF,
        _BROKEN,
        "an NVSwitch failed",
        "NVIDIA, Fabric Manager user guide: NVSwitch SXids",
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 12 Minion Link DLREQ",),
    ),
    Rule(
        "xid other",
        _AT + r"\d+\b",
        Standing.SIGN,
        Reading(Symptom.CUDA_ERROR, Label.UNKNOWN, Action.CHECK, 0.3),
        "an Xid whose meaning is not known here",
        _SOURCE,
        ("NVRM: Xid (PCI:0000:04:00): 999, pid=1",),
    ),
)
