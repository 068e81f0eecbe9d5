"""What is kept of an incident: what the evidence says, what was done, how it ended."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.vocabulary import ClimbOutcome, Outcome, Rung, Spent, Symptom


@dataclass(frozen=True, slots=True)
class Finding:
    """What the evidence says so far.

    Attributes:
        symptom: Best name for what happened.
        machines: Machines that the evidence points at, sorted; empty when nobody stands out.
        ranks: Ranks that the evidence points at, sorted.
        confident: Whether it is a high-confidence, machine-specific fault.
        reason: One sentence with the evidence that decided.
        killed: Whether a signal that others send (SIGKILL, SIGTERM) ended the first rank.
        first_action: What to do first, as what the ranks said last is read: a value of
            `classify.names.Action`; empty when nothing telling was said.
        confidence: Of that reading, 0 to 1.
        group_only: Those of `machines` at which nothing points but the parallel group that they
            share with others: they are tested once they are out.
    """

    symptom: Symptom
    machines: tuple[str, ...]
    ranks: tuple[int, ...]
    confident: bool
    reason: str
    killed: bool = False
    first_action: str = ""
    confidence: float = 0.0
    group_only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StackRecord:
    """What the stacks of all ranks said of a hang, asked twice some seconds apart.

    Attributes:
        at_s: When it was judged.
        attempt: The attempt that hung.
        verdict: As in `stacks.verdict.StackVerdict`.
        next_step: As in `stacks.verdict.NextStep`; empty with an eviction.
        suspects: Ranks that stand out, ascending; may be there without an eviction.
        kind: Of the parallel group that they share, as in `stacks.domain.Domain`; or empty.
        machines: What to evict, by slot.
        group_only: Those of `machines` at which nothing points but that group.
        reasons: Sentences, the one that decided first; doubts begin with "Doubt:".
        evidence: URL of the evidence store.
        grid: Digest there of the job as a grid in text, suspects marked.
        picture: Digest there of the same as SVG.
    """

    at_s: float
    attempt: int
    verdict: str
    next_step: str
    suspects: tuple[int, ...]
    kind: str
    machines: tuple[str, ...]
    group_only: tuple[str, ...]
    reasons: tuple[str, ...]
    evidence: str
    grid: str
    picture: str


@dataclass(frozen=True, slots=True)
class Climb:
    """A rung that was climbed, with what led to it and what it brought.

    Attributes:
        rung: Which one.
        reason: One sentence.
        machines: Machines that it evicted, or that its tests named.
        attempt: The attempt that had failed.
        at_s: When.
        outcome: What it brought.
        symptom: The failure that it answered; None in records of older versions.
        suspects: Machines at which the evidence pointed when it was chosen.
    """

    rung: Rung
    reason: str
    machines: tuple[str, ...]
    attempt: int
    at_s: float
    outcome: ClimbOutcome = ClimbOutcome.DONE
    symptom: Symptom | None = None
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of an incident's story."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """From this moment on, until the next mark or the next new step, time went into this."""

    at_s: float
    spent: Spent


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """Everything that is kept of an incident.

    Attributes:
        incident: Number within the job, from 1.
        job: Name of the job.
        opened_at_s: When the first alert was raised.
        fault_at_s: When the fault showed itself, by the earliest evidence.
        outcome: How it stands.
        finding: What the evidence says, of the newest failure.
        climbs: Rungs performed, in order.
        timeline: The story, in order.
        evicted: Machines taken out.
        replacements: Machines that took their slots.
        attempt_before: The attempt that failed.
        attempt_after: The attempt that runs now.
        restored_step: Step that the job restarted from, or None when it did not restart.
        failed_step: Newest step that any rank had saved or told of before the fault; None if none.
        lost_steps: Finished steps that are done again.
        first_step_at_s: When the first new step was finished by all ranks, or None.
        closed_at_s: When it was closed, or None.
        missing: What the incident waits for while it is held; empty otherwise.
        code_version: The code that ran.
        stacks: What the ranks' stacks said, each time that they were asked.
        returned: Evicted machines that passed their tests and wait for a slot again.
        marks: What time went into, in order; see `core.ledger`.
        first_finding: What it said of the first failure; None before that was judged, and in
            records of older versions.
    """

    incident: int
    job: str
    opened_at_s: float
    fault_at_s: float
    outcome: Outcome
    finding: Finding
    climbs: tuple[Climb, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    evicted: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    attempt_before: int = 0
    attempt_after: int = 0
    restored_step: int | None = None
    failed_step: int | None = None
    lost_steps: int = 0
    first_step_at_s: float | None = None
    closed_at_s: float | None = None
    missing: str = ""
    code_version: str = ""
    stacks: tuple[StackRecord, ...] = ()
    returned: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    first_finding: Finding | None = None

    @property
    def opened_by(self) -> Finding:
        """The failure that the incident is about; later ones came while it was recovered from."""
        return self.first_finding or self.finding

    @property
    def later_symptoms(self) -> tuple[Symptom, ...]:
        """What else failed before training was stable again, each once, in order."""
        climbed = [climb.symptom for climb in self.climbs if climb.symptom is not None]
        found = dict.fromkeys([*climbed, self.finding.symptom])
        return tuple(symptom for symptom in found if symptom is not self.opened_by.symptom)

    @property
    def machines_named(self) -> tuple[str, ...]:
        """Machines at which the evidence pointed, those of the first failure first."""
        climbed = [machine for climb in self.climbs for machine in climb.suspects]
        named = dict.fromkeys([*self.opened_by.machines, *climbed, *self.finding.machines])
        return tuple(named)
