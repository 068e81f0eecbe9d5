"""What a job keeps of its incidents, for all later ones: changes of its state, nothing else."""

from __future__ import annotations

from everstep.core import memory
from everstep.core.model import MachineInfo
from everstep.workflows.messages import Eviction, IncidentResult, JobState

MAX_BARRED = 50
"""Machines remembered as waiting for a person's word; an agent that is left out announces itself
again."""


def remember(state: JobState, result: IncidentResult, now_s: float) -> None:
    """What a closed incident has taught of machines, code and the attempt that runs now."""
    for at_s, machine in result.evictions:
        remember_eviction(state, Eviction(machine, at_s, result.record.finding.reason))
    state.codes = list(result.codes) or state.codes
    record = result.record
    if record.restored_step is not None:
        state.attempt_from = record.restored_step
        state.attempt_at_s = record.first_step_at_s or now_s


def remember_eviction(state: JobState, eviction: Eviction) -> None:
    """One eviction, told at once and again when the incident closes: it is counted once."""
    machine, at_s = eviction.machine, eviction.at_s
    if memory.history_of(state.machines, machine).last_evicted_s < at_s:
        state.machines = memory.after_eviction(state.machines, machine, at_s, eviction.reason)


def bar(state: JobState, machine: MachineInfo) -> None:
    """Keep a machine out until a person admits it."""
    others = [known for known in state.barred if known.machine != machine.machine]
    state.barred = [*others, machine][-MAX_BARRED:]
