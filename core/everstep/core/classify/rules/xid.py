"""Xids: what NVIDIA's driver writes to the kernel log when a GPU misbehaves.

One entry for codes that the catalogue treats alike. Its immediate action decides: what it answers
by resetting the GPU, restarting the machine or looking at its cables is a fault of the machine;
what it answers by restarting the application and looking at the program is the program's; what it
answers by restarting the application and asking NVIDIA makes a suspect. What depends on several
lines (13, 31, and the fabric's 137) is settled in `around`, by GPU and time. A code that was
cleaned up after ("caused by previous Xid 145") speaks for the earlier one.
"""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import QUIET, Reading, Rule, Standing

_SOURCE = "NVIDIA, Xid Errors: catalogue and analysis"
_AT = (
    r"(?:(?<!previous )\bxids?(?:criticalerror: xid| critical error| errors?| event| code)?"
    r"\s*(?:\((?:pci:)?[0-9a-f:.]+\))?[\s:=#]*|dcgm_fi_dev_xid_errors\{[^}]*\} +(?!0\b))"
)
_AFTER = r"\bxid\b.*\bcaused by previous xid "

_MEMORY = Reading(Symptom.GPU_MEMORY_ERROR, Label.GPU_HARDWARE, Action.EVICT, 0.9)
_LOST = Reading(Symptom.GPU_UNAVAILABLE, Label.GPU_HARDWARE, Action.EVICT, 0.9)
_BROKEN = Reading(Symptom.GPU_UNAVAILABLE, Label.GPU_HARDWARE, Action.EVICT, 0.75)
_PROGRAM = Reading(Symptom.CUDA_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.55)
_SUSPECT = Reading(Symptom.CUDA_ERROR, Label.GPU_HARDWARE, Action.CHECK, 0.5)

_ENGINES = (8, 39, 40, 41, 60, 68, 70, 71, 72, 75, 76, 77, *range(82, 87), 88, 89, *range(96, 106),
            *range(126, 136), 139, 142, 159)  # fmt: skip
_NOTES = (14, 63, 93, 106, 107, 121, 141, 152, 153, 156, 160, 162, 163)

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
    ((110, 151), Standing.PROOF, _BROKEN, "security fault"),
    ((155, 158, 167, 169), Standing.PROOF, _BROKEN, "the GPU or its link failed for good"),
    ((157,), Standing.PROOF, _BROKEN, "a broken resource could not be retired"),
    ((136, 173), Standing.PROOF, _BROKEN, "a chip-to-chip or NVLink link failed"),
    ((46, 62), Standing.PROOF, _BROKEN, "the GPU or its power unit has halted; it needs a reset"),
    ((109,), Standing.SIGN, _SUSPECT, "a context switch timed out; the GPU needs a reset"),
    ((13,), Standing.SIGN, _PROGRAM, "exception in the graphics or compute engine"),
    ((31,), Standing.SIGN, _PROGRAM, "GPU page fault: an address that is not mapped"),
    ((11, 25, 69), Standing.SIGN, _PROGRAM, "the program's commands make no sense to the GPU"),
    ((43,), Standing.CONSEQUENCE, _PROGRAM, "a channel was reset after a fault of the program"),
    ((45,), Standing.CONTEXT, QUIET, "channels cleaned up after something else, such as a kill"),
    (_ENGINES, Standing.SIGN, _SUSPECT, "an engine of the GPU failed"),
    ((32, 38, 44, 61, 66, 67, 80, 92, 37), Standing.SIGN, _SUSPECT, "engine or bus error"),
    ((78, 122, 123, 124, 125, 168), Standing.SIGN, _SUSPECT, "the board is not as it should be"),
    ((137,), Standing.SIGN, _SUSPECT, "privilege error on an NVLink access"),
    ((108, 161, 164, 165, 166, 170), Standing.SIGN, _SUSPECT, "NVLink or a channel is not sound"),
    (_NOTES, Standing.CONTEXT, QUIET, "corrected or recorded, as intended; nothing to do"),
)


def _rule(codes: tuple[int, ...], standing: Standing, reading: Reading, meaning: str) -> Rule:
    numbers = "|".join(map(str, codes))
    return Rule(
        name=f"xid {'/'.join(map(str, codes[:4]))}",
        pattern=_AT + rf"(?:{numbers})\b(?![.:]\d)(?!.*{_AFTER})|{_AFTER}(?:{numbers})\b",
        standing=standing,
        reading=reading,
        meaning=meaning,
        source=_SOURCE,
        examples=(f"NVRM: Xid (PCI:0000:3b:00): {codes[0]}, pid=77, name=python, Ch 00000010",),
    )


_BY_CODE = tuple(_rule(*entry) for entry in _CODES)

RULES: tuple[Rule, ...] = (
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
        _AT + r"1(?:4[4-9]|50)\b|" + _AFTER + r"1(?:4[4-9]|50)\b",
        Standing.PROOF,
        _BROKEN,
        "NVLink failed",
        _SOURCE,
        (
            "NVRM: Xid (PCI:0000:04:00): 145, RLW_CTRL Fatal XC1 i0 Link 07 (0x0 0x0)",
            "NVRM: Xid (PCI:0000:ed:00): 45, pid=7, Ch 0000000c caused by previous Xid 145",
        ),
    ),
    *_BY_CODE,
    Rule(
        "xid other",
        _AT + r"\d+\b(?!\.)",
        Standing.SIGN,
        Reading(Symptom.CUDA_ERROR, Label.UNKNOWN, Action.CHECK, 0.3),
        "an Xid whose meaning is not known here",
        _SOURCE,
        ("NVRM: Xid (PCI:0000:04:00): 999, pid=1",),
    ),
)
