"""Stacks and what they tell, on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from everstep.cli.console import out
from everstep.core.groups import Layout
from everstep.core.stacks import picture, summary
from everstep.core.stacks.dump import Snapshot
from everstep.core.stacks.picture import Mark
from everstep.core.stacks.verdict import Judgement
from everstep.core.stacks.words import ranks_text, runs_text

_STYLES = {Mark.SUSPECT: "bold white on red", Mark.EVICTED: "black on yellow", Mark.SILENT: "dim"}
_SIGNS = {Mark.SUSPECT: "!", Mark.EVICTED: "~", Mark.SILENT: "?", Mark.OTHER: ""}
_ROWS_SHOWN = 16
_STAGES_SHOWN = 16


def show_groups(snapshot: Snapshot, world_size: int) -> None:
    """Groups of equal stacks: how many, which ranks, where."""
    for group in summary.groups(snapshot):
        whose = "" if group.title == "rank" else f" ({group.title})"
        count = f"{len(group.ranks)}{whose}: {ranks_text(group.ranks)}, {group.stand}"
        out.print(f"[bold]{escape(count)}[/bold]")
        for call in group.calls:
            out.print(f"    {escape(call)}")
    for missing in summary.silent(snapshot, world_size):
        detail = f": {missing.detail}" if missing.detail else ""
        said = f"{len(missing.ranks)}: {ranks_text(missing.ranks)}, {missing.answer}{detail}"
        out.print(f"[bold]{escape(said)}[/bold]")


def show_judgement(layout: Layout, judgement: Judgement, silent: Collection[int]) -> None:
    """The verdict with its reasons, and the grid."""
    table = Table.grid(padding=(0, 2))
    table.add_row("verdict", judgement.verdict.value)
    table.add_row(
        "suspects", ranks_text(judgement.suspect_ranks) if judgement.suspect_ranks else "-"
    )
    if judgement.domain is not None:
        domain = judgement.domain
        table.add_row("group", f"{domain.kind}: {ranks_text(domain.ranks)}")
        table.add_row("evict", f"machines {runs_text(domain.machines)}")
    for number, reason in enumerate(judgement.reasons):
        table.add_row("" if number else "because", escape(reason))
    if judgement.next_step:
        table.add_row("next", judgement.next_step.value.replace("_", " "))
    out.print(table)
    out.print()
    _show_grid(layout, picture.marks(layout, judgement, silent))


def _show_grid(layout: Layout, marked: Mapping[int, Mark]) -> None:
    grid = picture.rows(layout)
    telling = [row for row in grid if any(r in marked for stage in row.stages for r in stage)]
    shown = grid if len(grid) <= _ROWS_SHOWN else telling[:_ROWS_SHOWN]
    stages = _stages(layout, shown, marked)
    table = Table("", *(f"pp {stage}" for stage in stages), box=box.SIMPLE_HEAD)
    for row in shown:
        cells = [
            " ".join(_cell(rank, marked.get(rank, Mark.OTHER)) for rank in row.stages[stage])
            for stage in stages
        ]
        table.add_row(row.title, *cells)
    out.print(table)
    if len(shown) < len(grid):
        out.print(f"{len(grid) - len(shown)} other rows are not shown.")
    out.print("! suspect   ~ evicted with it   ? did not answer", markup=False)


def _stages(layout: Layout, shown: Sequence[picture.Row], marked: Mapping[int, Mark]) -> list[int]:
    if layout.pp <= _STAGES_SHOWN:
        return list(range(layout.pp))
    telling = [
        stage
        for stage in range(layout.pp)
        if any(rank in marked for row in shown for rank in row.stages[stage])
    ]
    return telling[:_STAGES_SHOWN]


def _cell(rank: int, mark: Mark) -> str:
    text = f"{rank}{_SIGNS[mark]}"
    return f"[{_STYLES[mark]}]{text}[/]" if mark in _STYLES else text
