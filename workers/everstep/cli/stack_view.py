"""Stacks and what they tell, on a terminal."""

from __future__ import annotations

import re
from collections.abc import Collection

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from everstep.cli.console import out
from everstep.core.groups import Layout
from everstep.core.stacks import picture, summary
from everstep.core.stacks.dump import Snapshot
from everstep.core.stacks.picture import Mark
from everstep.core.stacks.verdict import Judgement
from everstep.core.stacks.words import ranks_text, runs_text

_STYLES = {Mark.SUSPECT: "bold white on red", Mark.EVICTED: "black on yellow", Mark.SILENT: "dim"}


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
    show_grid(picture.text(layout, judgement, silent))


def show_grid(grid: str) -> None:
    """A grid in text, with colours where a terminal has them."""
    shown = Text(grid.rstrip("\n"))
    for mark, style in _STYLES.items():
        shown.highlight_regex(rf"\d+{re.escape(picture.SIGNS[mark])}", style)
    out.print(shown)
