"""A run at one moment as a picture for a terminal: a pure function of what is known of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from everstep.cli.standing import notes
from everstep.core.groups import Layout
from everstep.core.stacks import picture as grid
from everstep.core.vocabulary import Phase
from everstep.workflows import story

MOST_ROWS = 24
"""Rows of the grid; the others are counted."""

MOST_STAGES = 16

_PHASES = {
    Phase.START: ("s", "blue"),
    Phase.EVALUATION: ("e", "cyan"),
    Phase.CHECKPOINT: ("c", "magenta"),
    Phase.PAUSED: ("p", "yellow"),
    Phase.ENDED: ("x", "dim"),
}
_STEP, _AHEAD, _SILENT, _GONE = ("o", "green"), ("+", "bold green"), ("?", "dim"), ("!", "bold red")
LEGEND = (
    "o step  + ahead  s start  e evaluation  c checkpoint  p paused  x ended  ? no word  ! no agent"
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a run at a moment.

    Attributes:
        now_s: The moment, Unix seconds.
        standing: What `cli.standing.describe` found.
        layout: The job's; None where its spec cannot be read.
        attempt: The attempt that ranks speak of; 0 before any word.
        steps: Newest step by rank in that attempt.
        phases: What each rank does.
        machines: Machines whose agents are connected; None: nobody could be asked.
        loss: The newest one; None: nobody told.
        ettr: Cumulative, 0 to 1; None before the job was started.
        hour_ettr: Of the newest hour, likewise.
    """

    now_s: float
    standing: Mapping[str, Any]
    layout: Layout | None = None
    attempt: int = 0
    steps: Mapping[int, int] = field(default_factory=dict[int, int])
    phases: Mapping[int, Phase] = field(default_factory=dict[int, Phase])
    machines: tuple[str, ...] | None = None
    loss: float | None = None
    ettr: float | None = None
    hour_ettr: float | None = None


def picture(seen: Seen) -> RenderableType:
    """The whole picture."""
    parts: list[RenderableType] = [_headline(seen)]
    if (incident := seen.standing["incident"]) is not None:
        parts.append(_incident(seen, incident))
    elif seen.standing["missing"]:
        parts.append(Text(f"waits for: {seen.standing['missing']}", style="yellow"))
    if seen.layout is not None and seen.standing["slots"]:
        parts += _grid(seen, seen.layout)
    parts.append(_machines(seen))
    for at_s, text in notes(seen.standing)[-3:]:
        parts.append(Text(f"{story.clock(at_s)} {text}", style="dim"))
    return Group(*parts)


def line(seen: Seen) -> str:
    """The same in one line, for where there is no terminal."""
    parts = [story.clock(seen.now_s), str(seen.standing["phase"]), *_figures(seen)]
    if (incident := seen.standing["incident"]) is not None:
        parts.append(f"incident {incident['number']} {_state(incident)}, {_open_s(seen, incident)}")
    if seen.standing["missing"]:
        parts.append(f"waits for: {seen.standing['missing']}")
    return "; ".join(parts)


def news(seen: Seen) -> tuple[object, ...]:
    """What makes another line worth it at once, when it differs from the line before."""
    incident = seen.standing["incident"]
    state = None if incident is None else (incident["number"], _state(incident))
    return seen.standing["phase"], seen.attempt, state, seen.standing["missing"]


def _headline(seen: Seen) -> Text:
    text = Text.assemble((str(seen.standing["job"]), "bold"), f": {seen.standing['phase']}")
    return text.append("; ".join(["", *_figures(seen)]))


def _figures(seen: Seen) -> list[str]:
    step = seen.standing["step"]
    parts = [f"step {'none yet' if step is None else step}", f"attempt {seen.standing['attempt']}"]
    if seen.loss is not None:
        parts.append(f"loss {seen.loss:.4g}" if math.isfinite(seen.loss) else "loss not finite")
    if seen.ettr is not None:
        hour = "" if seen.hour_ettr is None else f" ({seen.hour_ettr:.1%} of the newest hour)"
        parts.append(f"ETTR {seen.ettr:.1%}{hour}")
    return parts


def _state(incident: Mapping[str, Any]) -> str:
    machines = f" on {', '.join(incident['machines'])}" if incident["machines"] else ""
    rung = f", rung {incident['rungs'][-1]}" if incident["rungs"] else ", no rung yet"
    return f"{incident['symptom']}{machines}{rung}, {incident['outcome']}"


def _open_s(seen: Seen, incident: Mapping[str, Any]) -> str:
    return f"{max(0.0, seen.now_s - incident['fault_at_s']):.1f} s"


def _incident(seen: Seen, incident: Mapping[str, Any]) -> Panel:
    lines = Text()
    if seen.standing["missing"]:
        lines.append(f"waits for: {seen.standing['missing']}\n", style="bold yellow")
    for at_s, text in incident["story"]:
        lines.append(f"{at_s - incident['fault_at_s']:+8.2f} s  {str(text).splitlines()[0]}\n")
    title = f"incident {incident['number']}: {_state(incident)}, {_open_s(seen, incident)}"
    lines.rstrip()
    return Panel(lines, title=Text(title), title_align="left", border_style="red")


def _grid(seen: Seen, layout: Layout) -> list[RenderableType]:
    """One row a model replica, one column a pipeline stage, one sign a rank."""
    rows = grid.rows(layout)
    stages = min(layout.pp, MOST_STAGES)
    table = Table(*["", *(f"pp {stage}" for stage in range(stages))], box=None, padding=(0, 1))
    signs = _signs(seen, layout)
    for row in rows[:MOST_ROWS]:
        cells = [
            Text.assemble(*(signs[rank] for rank in stage)) for stage in row.stages[:MOST_STAGES]
        ]
        table.add_row(row.title, *cells)
    parts: list[RenderableType] = [table]
    if len(rows) > MOST_ROWS or layout.pp > MOST_STAGES:
        shown = {r for row in rows[:MOST_ROWS] for s in row.stages[:MOST_STAGES] for r in s}
        counts = Counter(sign for rank, (sign, _) in signs.items() if rank not in shown)
        others = ", ".join(f"{count} {sign}" for sign, count in counts.most_common())
        parts.append(Text(f"and {layout.world_size - len(shown)} ranks more: {others}"))
    return [*parts, Text(LEGEND, style="dim")]


def _signs(seen: Seen, layout: Layout) -> dict[int, tuple[str, str]]:
    """How each rank is shown."""
    alive = set(seen.standing["slots"]) - {None}
    if seen.machines is not None:
        alive &= set(seen.machines)
    slowest = min(seen.steps.values(), default=0)
    signs: dict[int, tuple[str, str]] = {}
    for slot, machine in enumerate(seen.standing["slots"]):
        for rank in layout.ranks_of(slot):
            phase = seen.phases.get(rank)
            if machine not in alive:
                signs[rank] = _GONE
            elif phase is None:
                signs[rank] = _SILENT
            elif phase in _PHASES:
                signs[rank] = _PHASES[phase]
            else:
                signs[rank] = _AHEAD if seen.steps.get(rank, slowest) > slowest else _STEP
    return signs


def _machines(seen: Seen) -> Text:
    standing = seen.standing
    vacant = [str(slot) for slot, machine in enumerate(standing["slots"]) if machine is None]
    parts = [f"standbys: {', '.join(standing['standbys']) or 'none'}"]
    parts += [f"vacant slots: {', '.join(vacant)}"] if vacant else []
    parts.append(f"evicted: {', '.join(standing['evicted']) or 'none'}")
    parts.append(f"incidents: {standing['incidents']}")
    return Text("; ".join(parts))
