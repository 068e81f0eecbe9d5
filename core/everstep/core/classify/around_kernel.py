"""What the kernel's lines mean beside one another."""

from __future__ import annotations

import re
from dataclasses import replace

from everstep.core.classify.evidence import Context, Match
from everstep.core.classify.matches import Matches, Refinement, of, reread
from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Standing

_STATUS = re.compile(r"bank \d+: ([0-9a-f]{16})", re.IGNORECASE)
_STUCK = re.compile(r"stuck for (\d+)s", re.IGNORECASE)
_MEMORY = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.EVICT, 0.85)
_KERNEL = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.EVICT, 0.65)
_WEDGED = Reading(Symptom.GPU_UNAVAILABLE, Label.INFRASTRUCTURE, Action.EVICT, 0.65)
_D_STATE = Reading(Symptom.STORAGE_ERROR, Label.STORAGE, Action.RETRY, 0.6)
LONG_LOCKUP_S = 120
"""A processor that load keeps busy is free again long before this."""
_TRACE_LINES = 60


def _bank_status(matches: Matches, _: Context) -> Matches:
    """A machine check whose status has bit 61 was not corrected (Intel SDM, IA32_MCi_STATUS)."""

    def uncorrected(match: Match) -> bool:
        status = _STATUS.search(match.text)
        return status is not None and bool(int(status[1], 16) >> 61 & 1)

    return [
        replace(m, standing=Standing.PROOF, reading=_MEMORY)
        if m.rule.name == "machine check status" and uncorrected(m)
        else m
        for m in matches
    ]


def _lockups(matches: Matches, _: Context) -> Matches:
    """A processor that is stuck repeatedly, or for long, is the machine's fault; once is load."""
    found = of(matches, "lockup")
    stuck_s = [int(stuck[1]) for m in found if (stuck := _STUCK.search(m.text))]
    if len(found) > 1 or max(stuck_s, default=0) >= LONG_LOCKUP_S:
        return reread(matches, ["lockup"], Standing.CAUSE, _KERNEL)
    return matches


def _hung_tasks(matches: Matches, _: Context) -> Matches:
    """A hung task whose call trace is in a file system waits for storage."""
    frames = [m.line for m in of(matches, "frame in storage", "remote storage")]
    return [
        replace(m, standing=Standing.CAUSE, reading=_D_STATE)
        if m.rule.name == "hung task" and any(abs(at - m.line) < _TRACE_LINES for at in frames)
        else m
        for m in matches
    ]


def _wedged_driver(matches: Matches, _: Context) -> Matches:
    """Tasks that hang after an Xid of the machine, or in its GPU driver, wait for the driver."""
    xids = [m for m in matches if m.rule.name.startswith("xid ")]
    frames = [m for m in matches if m.rule.name == "frame in the driver"]
    return [
        replace(m, standing=Standing.CAUSE, reading=_WEDGED)
        if m.rule.name == "hung task"
        and (
            any((x.source, x.line) < (m.source, m.line) for x in xids)
            or any(0 < f.line - m.line < _TRACE_LINES for f in frames if f.source == m.source)
        )
        else m
        for m in matches
    ]


def _no_switch(matches: Matches, _: Context) -> Matches:
    """A fabric manager that found no switch ends, and there is no fabric to wait for."""
    none = of(matches, "no switch to manage")
    if none:
        return reread(matches, ["fabric not ready"], Standing.CONTEXT, none[0].reading)
    return matches


KERNEL_REFINEMENTS: tuple[Refinement, ...] = (
    _bank_status,
    _lockups,
    _hung_tasks,
    _wedged_driver,
    _no_switch,
)
