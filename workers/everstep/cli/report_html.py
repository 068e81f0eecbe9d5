"""A run's report as one page: readable offline, on a phone, in light and in dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from everstep.cli.console import counted
from everstep.cli.html_page import document, table
from everstep.core.record import IncidentRecord
from everstep.core.report import Report, lost_s
from everstep.core.vocabulary import Spent
from everstep.workflows import story

_WIDTH, _HEIGHT, _EDGE = 720.0, 220.0, 30.0

_COLOURS = {
    Spent.PRODUCTIVE: "#3b8f5a",
    Spent.REDONE: "#b8860b",
    Spent.DETECT: "#d9534f",
    Spent.LOCATE: "#c2528b",
    Spent.RESTART: "#5a6fd0",
    Spent.CHECKPOINT: "#7a5bb5",
    Spent.HELD: "#8a5a3b",
    Spent.UPDATE: "#2a8fa8",
    Spent.START: "#8c8c8c",
    Spent.END: "#b5b5b5",
}


def page(found: Report, incidents: Sequence[IncidentRecord]) -> str:
    """The whole page.

    Args:
        found: The run's figures.
        incidents: Its incidents, by number.
    """
    took = _duration(found.to_s - found.from_s)
    body = [
        f"<h1>{escape(found.job)}: ETTR {found.ettr:.2%}</h1>",
        f"<p>{counted(found.steps, 'step')} in {took}, from {story.clock(found.from_s)} to"
        f" {story.clock(found.to_s)} UTC; {counted(len(incidents), 'incident')}.</p>",
        *time_spent(found, incidents),
        *incident_tables(found, incidents),
    ]
    return document(f"{found.job}: report", body)


def time_spent(found: Report, incidents: Sequence[IncidentRecord], of: str = "") -> list[str]:
    """The curve of ETTR, and where the time went.

    Args:
        found: The run's figures.
        incidents: Its incidents, by number.
        of: What titles add to themselves: of which run it is, where a page is of several.
    """
    wall_s = found.to_s - found.from_s
    return [
        f"<h2>Effective training time ratio{escape(of)}</h2>",
        "<p>Cumulative (solid) and of the hour before (dashed); each line is an incident.</p>",
        _curve(found, incidents),
        f"<h2>Where the time went{escape(of)}</h2>",
        _bar(found),
        table(
            ("class", "seconds", "share"),
            [
                (f"{_key(kind)} {kind}", f"{seconds:.2f}", f"{seconds / max(wall_s, 1e-9):.2%}")
                for kind, seconds in found.spent.items()
                if seconds
            ],
        ),
    ]


def incident_tables(
    found: Report,
    incidents: Sequence[IncidentRecord],
    of: str = "",
    clock: Callable[[float], str] = story.clock,
) -> list[str]:
    """The incidents by symptom, and one by one; nothing where there were none.

    Args:
        found: The run's figures.
        incidents: Its incidents, by number.
        of: What titles add to themselves.
        clock: How a moment is told.
    """
    if not incidents:
        return []
    return [
        f"<h2>Incidents by symptom{escape(of)}</h2>",
        table(
            ("symptom", "incidents", "mean s", "worst s", "resolved by"),
            [
                (
                    escape(one.symptom),
                    str(one.incidents),
                    f"{one.mean_s:.2f}",
                    f"{one.worst_s:.2f}",
                    ", ".join(f"{rung} {count}" for rung, count in one.rungs),
                )
                for one in found.symptoms
            ],
        ),
        f"<h2>Incidents{escape(of)}</h2>",
        table(
            ("no.", "at", "what", "lost s", "evicted"),
            [_row(found, record, clock) for record in incidents],
        ),
    ]


def _row(found: Report, record: IncidentRecord, clock: Callable[[float], str]) -> tuple[str, ...]:
    rungs = ", ".join(climb.rung for climb in record.climbs)
    what = f"{record.finding.symptom}: {rungs}<br><small>{escape(record.finding.reason)}</small>"
    seconds = sum(lost_s(found.stretches, record.incident).values())
    evicted = escape(", ".join(record.evicted))
    return str(record.incident), clock(record.fault_at_s), what, f"{seconds:.2f}", evicted


def _curve(found: Report, incidents: Sequence[IncidentRecord]) -> str:
    wall_s = max(found.to_s - found.from_s, 1e-9)

    def x(at_s: float) -> float:
        return _EDGE + (_WIDTH - _EDGE) * (at_s - found.from_s) / wall_s

    def y(ratio: float) -> float:
        return _HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * ratio

    def line(points: Iterable[tuple[float, float]], style: str) -> str:
        text = " ".join(f"{x(at_s):.1f},{y(ratio):.1f}" for at_s, ratio in points)
        return f'<polyline points="{text}" fill="none" stroke="#3b8f5a" {style}/>'

    parts = [
        f'<line x1="{_EDGE}" x2="{_WIDTH}" y1="{y(ratio):.1f}" y2="{y(ratio):.1f}"'
        f' stroke="var(--line)"/><text x="0" y="{y(ratio) + 4:.1f}">{ratio:.0%}</text>'
        for ratio in (0.0, 0.5, 1.0)
    ]
    parts += [
        f'<line x1="{x(record.fault_at_s):.1f}" x2="{x(record.fault_at_s):.1f}" y1="{y(1):.1f}"'
        f' y2="{y(0):.1f}" stroke="#d9534f"><title>incident {record.incident}:'
        f" {escape(record.finding.symptom)}</title></line>"
        for record in incidents
    ]
    parts.append(line([(at_s, hour) for at_s, _, hour in found.curve], 'stroke-dasharray="4 3"'))
    parts.append(line([(at_s, whole) for at_s, whole, _ in found.curve], 'stroke-width="2"'))
    return _svg(_HEIGHT, parts)


def _bar(found: Report) -> str:
    wall_s = max(found.to_s - found.from_s, 1e-9)
    parts = [
        f'<rect x="{_WIDTH * (s.from_s - found.from_s) / wall_s:.2f}" y="0" height="24"'
        f' width="{_WIDTH * s.length_s / wall_s:.2f}" fill="{_COLOURS[s.spent]}">'
        f"<title>{s.spent}: {s.length_s:.2f} s</title></rect>"
        for s in found.stretches
    ]
    return _svg(24.0, parts)


def _svg(height: float, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _key(kind: Spent) -> str:
    return f'<i class="key" style="background:{_COLOURS[kind]}"></i>'


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
