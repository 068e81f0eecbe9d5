"""The job as a grid, one row a model replica, one column a pipeline stage, with suspects marked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

from everstep.core.groups import Layout
from everstep.core.stacks.verdict import Judgement

_SQUARE = 14
_STEP = 16
_GAP = 10
_LEFT = 110
_TOP = 70
_LEGEND_STEP = 130
_MOST_ROWS = 16
_MOST_STAGES = 16


class Mark(StrEnum):
    """How a rank is shown."""

    SUSPECT = "suspect"
    EVICTED = "evicted with it"
    SILENT = "did not answer"
    OTHER = "ordinary"


SIGNS = {Mark.SUSPECT: "!", Mark.EVICTED: "~", Mark.SILENT: "?", Mark.OTHER: ""}

COLOURS = {
    Mark.SUSPECT: "#d62728",
    Mark.EVICTED: "#f2a93b",
    Mark.SILENT: "#7f7f7f",
    Mark.OTHER: "#cfe3cf",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One model replica.

    Attributes:
        title: Its coordinates, such as "dp 3".
        stages: By pipeline stage, the ranks of its tensor-parallel group.
    """

    title: str
    stages: tuple[tuple[int, ...], ...]


def rows(layout: Layout) -> list[Row]:
    """The grid: outer dimensions make rows, pp makes columns, tp the ranks in a cell."""
    outer = [kind for kind in reversed(layout.order) if kind not in ("tp", "pp")]
    shown = [kind for kind in outer if layout.sizes[kind] > 1] or ["dp"]
    found: dict[str, Row] = {}
    for rank in range(layout.world_size):
        at = layout.coordinates(rank)
        if at["tp"] or at["pp"]:
            continue
        title = " ".join(f"{kind} {at[kind]}" for kind in shown)
        stages = [layout.rank_at(at | {"pp": stage}) for stage in range(layout.pp)]
        found[title] = Row(title, tuple(layout.group("tp", first) for first in stages))
    return list(found.values())


def marks(layout: Layout, judgement: Judgement, silent: Collection[int]) -> dict[int, Mark]:
    """How each rank is shown that is not an ordinary one."""
    found = dict.fromkeys(silent, Mark.SILENT)
    for slot in judgement.evict_machines:
        found.update(dict.fromkeys(layout.ranks_of(slot), Mark.EVICTED))
    found.update(dict.fromkeys(judgement.suspect_ranks, Mark.SUSPECT))
    return found


def text(layout: Layout, judgement: Judgement, silent: Collection[int]) -> str:
    """The grid in characters; of a large job, the rows and stages where somebody is marked."""
    marked = marks(layout, judgement, silent)
    grid = rows(layout)
    telling = [row for row in grid if any(r in marked for stage in row.stages for r in stage)]
    shown = grid if len(grid) <= _MOST_ROWS else telling[:_MOST_ROWS]
    stages = _stages(layout, shown, marked)
    lines = [("", *(f"pp {stage}" for stage in stages))]
    lines += [(row.title, *(_cell(row.stages[stage], marked) for stage in stages)) for row in shown]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    drawn = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    if len(shown) < len(grid):
        drawn.append(f"{len(grid) - len(shown)} other rows are not shown.")
    legend = "   ".join(f"{SIGNS[mark]} {mark}" for mark in Mark if SIGNS[mark])
    return "\n".join([*drawn, legend, ""])


def _stages(layout: Layout, shown: Sequence[Row], marked: Mapping[int, Mark]) -> list[int]:
    if layout.pp <= _MOST_STAGES:
        return list(range(layout.pp))
    telling = [
        stage
        for stage in range(layout.pp)
        if any(rank in marked for row in shown for rank in row.stages[stage])
    ]
    return telling[:_MOST_STAGES]


def _cell(ranks: Sequence[int], marked: Mapping[int, Mark]) -> str:
    return " ".join(f"{rank}{SIGNS[marked.get(rank, Mark.OTHER)]}" for rank in ranks)


def svg(layout: Layout, judgement: Judgement, silent: Collection[int], title: str) -> str:
    """The grid as an SVG document; pointing at a square tells its rank, machine and coordinates."""
    marked = marks(layout, judgement, silent)
    grid = rows(layout)
    stage_width = layout.tp * _STEP + _GAP
    width = max(_LEFT + layout.pp * stage_width + _GAP, _LEFT + len(Mark) * _LEGEND_STEP)
    height = _TOP + len(grid) * _STEP + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_GAP}" y="18" font-size="14">{escape(title)}</text>',
        *_legend(),
        *(
            f'<text x="{_LEFT + stage * stage_width}" y="{_TOP - 6}">pp {stage}</text>'
            for stage in range(layout.pp)
        ),
    ]
    for number, row in enumerate(grid):
        y = _TOP + number * _STEP
        parts.append(f'<text x="{_GAP}" y="{y + 11}">{escape(row.title)}</text>')
        for stage, ranks in enumerate(row.stages):
            x = _LEFT + stage * stage_width
            for index, rank in enumerate(ranks):
                mark = marked.get(rank, Mark.OTHER)
                parts.append(_square(x + index * _STEP, y, _about(layout, rank, mark), mark))
    return "\n".join([*parts, "</svg>", ""])


def _about(layout: Layout, rank: int, mark: Mark) -> str:
    at = layout.coordinates(rank)
    place = " ".join(f"{kind} {at[kind]}" for kind in layout.order)
    return f"rank {rank}, machine {layout.machine_of(rank)}, {place}: {mark}"


def _square(x: int, y: int, about: str, mark: Mark) -> str:
    colour = COLOURS[mark]
    return (
        f'<rect x="{x}" y="{y}" width="{_SQUARE}" height="{_SQUARE}" fill="{colour}">'
        f"<title>{escape(about)}</title></rect>"
    )


def _legend() -> Iterable[str]:
    for index, mark in enumerate(Mark):
        x = _GAP + index * _LEGEND_STEP
        yield f'<rect x="{x}" y="28" width="{_SQUARE}" height="{_SQUARE}" fill="{COLOURS[mark]}"/>'
        yield f'<text x="{x + _STEP + 4}" y="39">{mark}</text>'
