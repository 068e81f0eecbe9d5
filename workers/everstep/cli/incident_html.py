"""One incident as a page to hand over: what was seen, what was done, and the evidence."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from html import escape

from everstep.cli.html_page import document, table
from everstep.core.record import IncidentRecord, StackRecord
from everstep.core.vocabulary import Spent
from everstep.workflows import story


def page(record: IncidentRecord, pictures: Mapping[str, bytes]) -> str:
    """The whole page.

    Args:
        record: The incident.
        pictures: Pictures of its stacks (SVG), by digest, as far as they could be had.
    """
    title = f"{record.job}, incident {record.incident}: {record.opened_by.symptom}"
    reason = escape(record.opened_by.reason)
    body = [f"<h1>{escape(title)}</h1>", f"<p>{reason}</p>", _facts(record)]
    if record.missing:
        body.append(f"<p><b>Waits for:</b> {escape(record.missing)}</p>")
    if spent := _spent(record):
        body += ["<h2>What took its time</h2>", table(("what", "seconds"), spent)]
    if record.climbs:
        body += ["<h2>Rungs</h2>", _climbs(record)]
    for stacks in record.stacks:
        body += _stacks(stacks, pictures.get(stacks.picture))
    body += ["<h2>Story</h2>", _story(record)]
    text = json.dumps(asdict(record), indent=2)
    body.append(f"<h2>Record</h2><details><pre>{escape(text)}</pre></details>")
    return document(title, body)


def _facts(record: IncidentRecord) -> str:
    finding = record.opened_by
    then = f"{', '.join(record.later_symptoms)}: {record.finding.reason}"
    facts = {
        "stands": record.outcome.value,
        "fault (UTC)": f"{story.day(record.fault_at_s)} {story.clock(record.fault_at_s)}",
        "evidence points at": ", ".join(finding.machines) or "nobody",
        "ranks": ", ".join(map(str, finding.ranks)),
        "then": then if record.later_symptoms else "",
        "evicted": ", ".join(record.evicted),
        "took their slots": ", ".join(record.replacements),
        "came back after tests": ", ".join(record.returned),
        "attempt": f"{record.attempt_before} failed, {record.attempt_after or 'none'} follows",
        "code version": record.code_version,
        "restarted from step": "" if record.restored_step is None else str(record.restored_step),
        "steps done again": str(record.lost_steps),
        "from fault to first new step": ""
        if record.first_step_at_s is None
        else f"{record.first_step_at_s - record.fault_at_s:.2f} s",
    }
    return table((), [(name, escape(text)) for name, text in facts.items() if text])


def _spent(record: IncidentRecord) -> list[tuple[str, str]]:
    """Seconds by class while training stood, up to the first new step."""
    if not record.marks or record.first_step_at_s is None:
        return []
    edges = [*((mark.at_s, mark.spent) for mark in record.marks)]
    edges.append((record.first_step_at_s, Spent.END))
    spent = dict.fromkeys(Spent, 0.0)
    for (begin_s, kind), (end_s, _) in itertools.pairwise(edges):
        spent[kind] += max(0.0, end_s - begin_s)
    return [(kind.value, f"{seconds:.2f}") for kind, seconds in spent.items() if seconds]


def _climbs(record: IncidentRecord) -> str:
    return table(
        ("rung", "brought", "machines", "because"),
        [
            (
                climb.rung.value,
                climb.outcome.value.replace("_", " "),
                escape(", ".join(climb.machines)),
                escape(climb.reason),
            )
            for climb in record.climbs
        ],
    )


def _stacks(stacks: StackRecord, picture: bytes | None) -> Iterable[str]:
    yield f"<h2>Stacks of attempt {stacks.attempt}: {escape(stacks.verdict)}</h2>"
    yield f"<ul>{''.join(f'<li>{escape(reason)}</li>' for reason in stacks.reasons)}</ul>"
    if picture is None:
        where = f"{stacks.picture} in {stacks.evidence}"
        yield f"<p>The picture ({escape(where)}) could not be had.</p>"
    else:
        # As an image, nothing in it is run, wherever the evidence was kept.
        data = base64.b64encode(picture).decode()
        yield f'<img alt="the job, suspects marked" src="data:image/svg+xml;base64,{data}">'


def _story(record: IncidentRecord) -> str:
    return table(
        ("UTC", "seconds", "what"),
        [
            (
                story.clock(entry.at_s),
                f"{entry.at_s - record.fault_at_s:+.2f}",
                f"<pre>{escape(entry.text)}</pre>",
            )
            for entry in record.timeline
        ],
    )
