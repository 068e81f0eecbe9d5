"""What a hang's stacks mean for the incident: whether to ask for them, and what they add.

Called by the incident workflow before ranks are stopped and again when their ends are known. Who
is suspected is `stacks.judge`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everstep.core.classify.names import Action
from everstep.core.groups import Layout
from everstep.core.model import Alert
from everstep.core.record import Finding, StackRecord
from everstep.core.stacks.dump import Answer, Snapshot
from everstep.core.stacks.verdict import DOUBT, Judgement, NextStep, StackVerdict
from everstep.core.stacks.words import ranks_text
from everstep.core.vocabulary import Symptom

REASONS_IN_FINDING = 2
"""The record has them all."""

PROGRAM_CONFIDENCE = 0.6
"""That the code is to blame where all ranks stand in it alike: more often than not, and no more."""


@dataclass(frozen=True, slots=True)
class JudgedStacks:
    """A judgement, and where the pictures of it are kept.

    Attributes:
        judgement: Who holds the job up.
        evidence: URL of the evidence store.
        grid: Digest there of the job as a grid in text.
        picture: Digest there of the same as SVG.
    """

    judgement: Judgement
    evidence: str
    grid: str
    picture: str


def wants_stacks(alerts: Sequence[Alert]) -> bool:
    """Whether where the ranks stand may tell more than what is known: they hang, and no more.

    How a rank ended, or what is certain of a machine, tells who it was; its peers then only wait.
    """
    if all(alert.symptom is not Symptom.JOB_HANG for alert in alerts):
        return False
    return not any(
        alert.symptom is Symptom.AGENT_LOST or alert.confident or alert.rank_exit is not None
        for alert in alerts
    )


def hung_after(alerts: Iterable[Alert]) -> int | None:
    """The step that all ranks had finished when they fell silent, where an observer knows."""
    steps = [a.step for a in alerts if a.symptom is Symptom.JOB_HANG and a.step is not None]
    return max(steps, default=None)


def hearing_doubts(snapshot: Snapshot) -> tuple[str, ...]:
    """What speaks against trusting a look at the ranks too far: who answered by a second way."""
    otherwise = {
        rank: dump.detail
        for rank, dump in snapshot.ranks.items()
        if dump.answer is Answer.ANSWERED and dump.detail
    }
    if not otherwise:
        return ()
    return (f"{DOUBT}{ranks_text(otherwise)} answered {otherwise[min(otherwise)]}",)


def stack_record(
    judged: JudgedStacks, machines: Sequence[str], layout: Layout, at_s: float, attempt: int
) -> StackRecord:
    """A judgement as the incident keeps it.

    Args:
        judged: The judgement.
        machines: Names by slot.
        layout: The job.
        at_s: When it was made.
        attempt: The attempt that hung.
    """
    judgement = judged.judgement
    evicted = judgement.evict_machines
    alone = len(evicted) == 1 or not judgement.by_group
    guilty = layout.machines_of(judgement.suspect_ranks) if alone else ()
    return StackRecord(
        at_s=at_s,
        attempt=attempt,
        verdict=judgement.verdict.value,
        next_step=judgement.next_step.value,
        suspects=judgement.suspect_ranks,
        kind="" if judgement.domain is None else judgement.domain.kind,
        machines=tuple(machines[slot] for slot in evicted),
        group_only=tuple(machines[slot] for slot in evicted if slot not in guilty),
        reasons=judgement.reasons,
        evidence=judged.evidence,
        grid=judged.grid,
        picture=judged.picture,
    )


def told(stacks: StackRecord) -> str:
    """A judgement for the incident's story: verdict, reasons, doubts."""
    if stacks.verdict == StackVerdict.EVICT:
        head = f"evict {', '.join(stacks.machines)} ({stacks.kind}), {_suspects(stacks)}"
        if stacks.group_only:
            head += f"; {', '.join(stacks.group_only)} for the group alone"
    else:
        verdict = "could not tell who" if _is_untold(stacks) else "the ranks move"
        head = f"{verdict}; next: {stacks.next_step.replace('_', ' ')}"
    return "\n".join([f"stacks: {head}", *stacks.reasons])


def sharpened(finding: Finding, stacks: StackRecord | None) -> Finding:
    """What the ends of the ranks say, and where they stood before.

    A certain fault, or a rank that somebody killed, tells who it was whatever the stacks say; a
    machine that is gone now goes beside whom they name, since it answered before. Other ends come
    after the hang, which had a time-out run out somewhere. The machines are suspected on evidence
    that points at a group, so the finding is not called confident; the ladder evicts them at once
    all the same.
    """
    if stacks is None or finding.killed:
        return finding
    if finding.confident:
        return _beside(finding, stacks)
    why = "; ".join(stacks.reasons[:REASONS_IN_FINDING])
    if stacks.verdict == StackVerdict.EVICT:
        return replace(
            finding,
            symptom=Symptom.JOB_HANG,
            machines=tuple(sorted(stacks.machines)),
            ranks=stacks.suspects,
            reason=f"the job hangs: {why}",
            group_only=tuple(sorted(stacks.group_only)),
        )
    if finding.symptom is not Symptom.JOB_HANG:
        return finding
    finding = replace(finding, reason=f"{finding.reason}; stacks do not tell who: {why}")
    if stacks.next_step == NextStep.PERSON:
        # Every rank is where its program has led it: no machine is to blame for that.
        action = Action.ROLLBACK.value
        return replace(finding, first_action=action, confidence=PROGRAM_CONFIDENCE)
    return finding


def _beside(finding: Finding, stacks: StackRecord) -> Finding:
    """Machines that are gone, with those that stacks name."""
    gone = finding.machines
    if finding.symptom is not Symptom.AGENT_LOST or stacks.verdict != StackVerdict.EVICT:
        return finding
    return replace(
        finding,
        machines=tuple(sorted({*gone, *stacks.machines})),
        ranks=stacks.suspects,
        reason=f"{finding.reason}; before that the job hung: {stacks.reasons[0]}",
        group_only=tuple(sorted({*stacks.group_only} - {*gone})),
    )


def _suspects(stacks: StackRecord) -> str:
    return f"suspected: {ranks_text(stacks.suspects)}"


def _is_untold(stacks: StackRecord) -> bool:
    return stacks.verdict == StackVerdict.UNOBSERVABLE
