"""What NVIDIA's Xid and SXid codes mean for the machine that reports them.

Source: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors, the catalog's columns "resolution
bucket") and the fabric manager's guide for SXids. What the catalog answers by resetting the GPU or
rebooting the machine is a fault of the machine here, since a job leaves a machine sooner than it
resets one; what it answers by restarting the application is the program's own; where it says to
investigate, the machine is a suspect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from everstep.core.vocabulary import Symptom


class Weight(StrEnum):
    """How much one code says about the machine."""

    PROGRAM = "program"
    HARMLESS = "harmless"
    SUSPECT = "suspect"
    FAULT = "fault"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a code stands for."""

    weight: Weight
    symptom: Symptom
    text: str


_CUDA, _MEMORY, _GONE = Symptom.CUDA_ERROR, Symptom.GPU_MEMORY_ERROR, Symptom.GPU_UNAVAILABLE
_NVLINK = "NVLink error"

XIDS: dict[int, Meaning] = {
    8: Meaning(Weight.SUSPECT, _CUDA, "GPU stopped processing"),
    13: Meaning(Weight.PROGRAM, _CUDA, "graphics engine exception"),
    31: Meaning(Weight.PROGRAM, _CUDA, "GPU memory page fault of the program"),
    32: Meaning(Weight.SUSPECT, _CUDA, "corrupted push buffer, often PCIe quality"),
    38: Meaning(Weight.SUSPECT, _CUDA, "driver firmware error"),
    43: Meaning(Weight.PROGRAM, _CUDA, "a channel was reset; the program ends"),
    45: Meaning(Weight.HARMLESS, _CUDA, "channels torn down after the program or an earlier Xid"),
    46: Meaning(Weight.FAULT, _GONE, "GPU stopped processing"),
    48: Meaning(Weight.FAULT, _MEMORY, "double-bit ECC error"),
    54: Meaning(Weight.FAULT, _GONE, "auxiliary power is not connected"),
    61: Meaning(Weight.FAULT, _GONE, "internal microcontroller breakpoint"),
    62: Meaning(Weight.FAULT, _GONE, "internal microcontroller halt"),
    63: Meaning(Weight.HARMLESS, _MEMORY, "row remapped or page retired; active after a reset"),
    64: Meaning(Weight.FAULT, _MEMORY, "row remapping or page retirement failed"),
    68: Meaning(Weight.PROGRAM, _CUDA, "video processor exception"),
    69: Meaning(Weight.PROGRAM, _CUDA, "graphics engine class error"),
    74: Meaning(Weight.FAULT, _GONE, _NVLINK),
    79: Meaning(Weight.FAULT, _GONE, "GPU has fallen off the bus"),
    92: Meaning(Weight.SUSPECT, _MEMORY, "high rate of single-bit ECC errors"),
    94: Meaning(Weight.FAULT, _MEMORY, "contained uncorrectable ECC error"),
    95: Meaning(Weight.FAULT, _MEMORY, "uncontained uncorrectable ECC error"),
    109: Meaning(Weight.SUSPECT, _CUDA, "context switch timed out"),
    110: Meaning(Weight.FAULT, _GONE, "security fault"),
    119: Meaning(Weight.FAULT, _GONE, "GPU system processor does not answer"),
    120: Meaning(Weight.FAULT, _GONE, "GPU system processor failed"),
    121: Meaning(Weight.SUSPECT, _CUDA, "chip-to-chip link error, corrected"),
    136: Meaning(Weight.FAULT, _GONE, "link training failed"),
    137: Meaning(Weight.SUSPECT, _CUDA, "NVLink access of a peer refused"),
    140: Meaning(Weight.FAULT, _MEMORY, "unrecovered ECC error"),
    143: Meaning(Weight.FAULT, _GONE, "GPU initialization failed"),
    **{code: Meaning(Weight.SUSPECT, _GONE, _NVLINK) for code in range(144, 151)},
    154: Meaning(Weight.SUSPECT, _GONE, "recovery action changed"),
    155: Meaning(Weight.SUSPECT, _GONE, _NVLINK),
    156: Meaning(Weight.HARMLESS, _MEMORY, "resource retired; active after a reset"),
    157: Meaning(Weight.FAULT, _MEMORY, "resource retirement failed"),
    158: Meaning(Weight.FAULT, _GONE, "fatal time-out of the GPU"),
}

AFTER_EFFECTS = frozenset({43, 45, 154})
"""Codes that follow another one on the same GPU and never lead."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[^)]*)\):? (?P<code>\d+)\b,? ?(?P<rest>.*)")
_SXID = re.compile(r"SXid \((?:PCI:)?(?P<bus>[^)]*)\): (?P<code>\d+), (?P<rest>.*)")
_RECOVERY = re.compile(r"recovery action changed from .* to \S+ \((?P<action>[^)]*)\)")
_SM = re.compile(r"\(GPC (\d+), TPC (\d+), SM (\d+)\)")


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid as the kernel log or NVML told of it.

    Attributes:
        gpu: The GPU's place on the bus, as `0000:1a:00`.
        code: The Xid.
        rest: What the driver wrote behind it.
    """

    gpu: str
    code: int
    rest: str = ""

    @property
    def multiprocessor(self) -> str | None:
        """The one multiprocessor that the message names, or None."""
        found = _SM.search(self.rest)
        return None if found is None else "/".join(found.groups())

    def meaning(self) -> Meaning:
        """What this very message says: its words overrule what its code says alone."""
        known = XIDS.get(self.code)
        if known is None:
            return Meaning(Weight.UNKNOWN, _CUDA, "not in the catalog")
        recovery = _RECOVERY.search(self.rest)
        if recovery is not None:
            action = recovery["action"]
            harmless = action.lower() == "none"
            text = f"recovery action is now: {action}"
            return Meaning(Weight.HARMLESS if harmless else Weight.FAULT, _GONE, text)
        if known.text is _NVLINK and "fatal" in self.rest.lower().replace("nonfatal", ""):
            return Meaning(Weight.FAULT, _GONE, known.text)
        return known


def parse_xid(text: str) -> Xid | None:
    """The Xid in a line of the kernel log, or None."""
    found = _XID.search(text)
    if found is None:
        return None
    return Xid(bus_id(found["bus"]), int(found["code"]), found["rest"])


@dataclass(frozen=True, slots=True)
class SXid:
    """One error of an NVSwitch."""

    switch: str
    code: int
    fatal: bool


def parse_sxid(text: str) -> SXid | None:
    """The SXid in a line of the kernel log, or None.

    The driver writes `Fatal` or `Non-fatal`, and in a further line `Severity 1` or `Severity 0`.
    """
    found = _SXID.search(text)
    if found is None:
        return None
    words = found["rest"].lower()
    fatal = words.startswith(("fatal", "severity 1"))
    return SXid(bus_id(found["bus"]), int(found["code"]), fatal)


def bus_id(text: str) -> str:
    """One spelling for a place on the PCI bus: `00000000:1A:00.0` becomes `0000:1a:00`."""
    parts = text.strip().lower().split(".")[0].split(":")
    if len(parts) == 3:
        parts[0] = parts[0][-4:].rjust(4, "0")
    return ":".join(parts)
