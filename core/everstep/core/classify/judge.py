"""From evidence to a classification: causes before consequences, the earliest first.

Paper: section 4.1 and Figure 5 (what goes straight to eviction, what to stop-time checks, what to
rollback). Departs from it in that "do not know" is an answer of its own, that a line is read in the
light of the others, and that nothing but evidence of one machine evicts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everstep.core.classify.around import refine
from everstep.core.classify.evidence import Classification, Context, Evidence, Match
from everstep.core.classify.hangs import missing_rank, refine_hangs
from everstep.core.classify.names import Action, Kind, Label, Symptom
from everstep.core.classify.rule import Reading, Standing

_MAX_LINES = 12
_NOTHING = Reading(Symptom.NONE, Label.UNKNOWN, Action.NONE, 0.3)
_STRANGE = Reading(Symptom.PROCESS_CRASH, Label.UNKNOWN, Action.CHECK, 0.15)
_SILENT = Reading(Symptom.JOB_HANG, Label.UNKNOWN, Action.CHECK, 0.3)
_SILENT_SAVE = Reading(Symptom.JOB_HANG, Label.STORAGE, Action.RETRY, 0.5)


def classify(evidence: Sequence[Evidence], context: Context | None = None) -> Classification:
    """Say what happened and what to do first.

    Args:
        evidence: Files of one job, or of one part of it; at least one.
        context: What is known beside the text.

    Returns:
        The classification; its lines are those of one file, the deciding one.

    Raises:
        ValueError: Without evidence.
    """
    if not evidence:
        raise ValueError("nothing to classify")
    context = context or Context()
    matches = [m for e in evidence for m in e.matches if m.standing > Standing.HARMLESS]
    matches = refine_hangs(refine(matches, context), context)
    telling = [m for m in matches if m.standing > Standing.CONTEXT]
    if not telling:
        return _without_a_cause(evidence, matches, context)
    lead = _lead(telling)
    lead = replace(lead, reading=_in_context(lead, evidence, context))
    return _answer(evidence, lead, telling, missing_rank(matches, context.world_size))


def _lead(matches: Sequence[Match]) -> Match:
    """The earliest of the highest standing; among consequences the most telling."""
    standing = max(m.standing for m in matches)
    rivals = [m for m in matches if m.standing is standing]
    if standing is Standing.CONSEQUENCE:
        best = max(m.reading.confidence for m in rivals)
        rivals = [m for m in rivals if m.reading.confidence == best]
    by_time = all(m.clock_s is not None for m in rivals)
    return min(rivals, key=lambda m: (m.clock_s if by_time else 0, m.source, m.line))


def _in_context(lead: Match, evidence: Sequence[Evidence], context: Context) -> Reading:
    """What is known beside the text decides where the text alone leaves it open."""
    reading = lead.reading
    if lead.standing >= Standing.CAUSE or reading.action is Action.NONE:
        return reading
    if context.first_run or (
        context.reproducible and (context.all_ranks or context.moved_machines)
    ):
        return Reading(reading.symptom, Label.USER_CODE, Action.ROLLBACK, 0.65)
    if context.reproducible is False and context.all_ranks is False:
        return replace(reading, confidence=min(1.0, reading.confidence + 0.1))
    mid_run = context.mid_run
    if mid_run is None:
        first = evidence[lead.source].progress_line
        mid_run = first is not None and first < lead.line
    if mid_run and lead.rule.name == "file not there":
        return Reading(reading.symptom, Label.STORAGE, Action.RETRY, 0.5)
    return reading


def _without_a_cause(
    evidence: Sequence[Evidence], matches: Sequence[Match], context: Context
) -> Classification:
    for one in evidence:
        if one.trend is not None:
            answer = _plain(one, one.trend.reading, None, one.trend.reason)
            return replace(answer, lines=(one.trend.line,))
    last = matches[-1] if matches else None
    if context.hung or any(e.kind is Kind.STACK_DUMP for e in evidence):
        saving = last is not None and last.rule.name in ("saving", "saved")
        return _plain(evidence[0], _SILENT_SAVE if saving else _SILENT, last, "no rank says why")
    strange = next((e for e in evidence if e.strange_line is not None), None)
    if last is not None and last.reading.action is Action.NONE:
        reason = f"{last.rule.name}: {last.rule.meaning}"
        return _plain(evidence[last.source], last.reading, last, reason)
    if strange is not None:
        lines = (strange.strange_line or 0,)
        reason = "a line sounds like an error and no rule knows it"
        return replace(_plain(strange, _STRANGE, None, reason), lines=lines)
    harmless = [m for e in evidence for m in e.matches if m.standing is Standing.HARMLESS]
    if harmless:
        first = harmless[0]
        reason = f"{first.rule.name}: {first.rule.meaning}"
        return _plain(evidence[first.source], first.reading, first, reason)
    empty = not any(e.num_lines for e in evidence)
    reason = "it is empty" if empty else "nothing in it is out of the ordinary"
    return _plain(evidence[0], _NOTHING, last, reason)


def _plain(
    evidence: Evidence, reading: Reading, match: Match | None, reason: str
) -> Classification:
    lines = () if match is None else (match.line,)
    return Classification(
        reading.symptom, reading.label, reading.action, reading.confidence, None,
        evidence.name, lines, reason,
    )  # fmt: skip


def _answer(
    evidence: Sequence[Evidence], lead: Match, telling: Sequence[Match], missing: int | None
) -> Classification:
    same = [m.line for m in telling if m.rule is lead.rule and m.source == lead.source]
    waiting = lead.standing is Standing.CONSEQUENCE or lead.rule.name == "ranks missing"
    others = len(telling) - len(same)
    reason = f"{lead.rule.name}: {lead.rule.meaning}"
    if others:
        reason += f"; {others} other telling lines come after it or follow from it"
    reading = lead.reading
    return Classification(
        symptom=reading.symptom,
        label=reading.label,
        first_action=reading.action,
        confidence=round(reading.confidence, 2),
        culprit_rank=missing if waiting else lead.rank,
        file=evidence[lead.source].name,
        lines=tuple(sorted({lead.line, *same[:_MAX_LINES]})),
        reason=reason,
        line=lead.line,
        standing=lead.standing,
    )
