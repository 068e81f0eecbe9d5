"""What a vote has found, for people: one sentence, and a table of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from everstep.core.groups import Layout
from everstep.core.slow.usual import Standing
from everstep.core.slow.work import Costs, Measure

MOST_ROWS = 8

_VERBS = {Measure.CPU: "computes", Measure.WALL: "is outside collectives"}


@dataclass(frozen=True, slots=True)
class Row:
    """One rank in one round.

    Attributes:
        rank: Global rank.
        machine: Where it runs.
        compute_s: Own time of a step, by the measure.
        wait_s: The rest of it.
        excess: By which share `compute_s` is more than usual, all ranks considered.
    """

    rank: int
    machine: str
    compute_s: float
    wait_s: float
    excess: float


@dataclass(frozen=True, slots=True)
class Table:
    """All ranks of a round by one measure, the slowest first, and when one stands out."""

    measure: Measure
    rows: tuple[Row, ...]
    margin: float

    def clear_on(self, machines: Sequence[str]) -> float:
        """How clearly the slowest rank on some machines stands out, in times of the margin."""
        return self.worst_on(machines).excess / self.margin

    def worst_on(self, machines: Sequence[str]) -> Row:
        """The slowest rank on some machines; there must be one."""
        return next(row for row in self.rows if row.machine in machines)


def table_of(measure: Measure, costs: Costs, standing: Standing) -> Table:
    """A round as one measure shows it."""
    rows = [
        Row(rank, cost.machine, cost.compute_s, cost.wait_s, standing.excess[rank])
        for rank, cost in costs.items()
    ]
    slowest_first = sorted(rows, key=lambda row: (-row.excess, row.rank))
    return Table(measure, tuple(slowest_first), standing.margin)


def sentence(table: Table, machines: Sequence[str], kind: str) -> str:
    """Who is slow, and by how much.

    Args:
        table: The round, by the measure that shows it best.
        machines: Who was found.
        kind: The kind of group that they are, where it is more than one.
    """
    first = table.worst_on(machines)
    who = f"rank {first.rank} on {first.machine}"
    if len(machines) > 1:
        who = f"{', '.join(machines)} ({kind}), most of all {who},"
    others = [row.excess for row in table.rows if row.machine not in machines]
    compared = f" (others {fmean(others):+.0%})" if others else ""
    verb = _VERBS[table.measure]
    return f"{who} {verb} {first.excess:.0%} longer for a step than is usual for it{compared}"


def lines_of(tables: Sequence[Table], layout: Layout) -> tuple[str, ...]:
    """The slowest ranks, what is left, and the slowest group of each kind, by measure."""
    lines: list[str] = []
    for table in tables:
        lines.append(f"last round, {table.measure} time a step: own, waiting, own against usual")
        lines += [_line(row, layout) for row in table.rows[:MOST_ROWS]]
        if others := table.rows[MOST_ROWS:]:
            excess = f"{others[-1].excess:+.1%} to {others[0].excess:+.1%}"
            lines.append(f"  {len(others)} other ranks: {excess}")
        lines += _groups({row.rank: row.excess for row in table.rows}, layout)
    return tuple(lines)


def _line(row: Row, layout: Layout) -> str:
    at = layout.coordinates(row.rank)
    place = " ".join(f"{kind}{at[kind]}" for kind in layout.wide_kinds)
    times = f"{row.compute_s:.4f} s, {row.wait_s:.4f} s, {row.excess:+.1%}"
    return f"  rank {row.rank} on {row.machine} ({place}): {times}"


def _groups(excess: Mapping[int, float], layout: Layout) -> list[str]:
    lines: list[str] = []
    for kind in layout.wide_kinds:
        means = {group: fmean(excess[rank] for rank in group) for group in layout.groups(kind)}
        slowest = max(means, key=lambda group: means[group])
        members = ", ".join(map(str, slowest[:MOST_ROWS]))
        more = ", ..." if len(slowest) > MOST_ROWS else ""
        lines.append(f"  slowest {kind} group: ranks {members}{more}: {means[slowest]:+.1%}")
    return lines
