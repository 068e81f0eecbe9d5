"""A simulation's figures as tables: for a terminal, a page, and programs."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.markup import escape

from everstep.cli.console import counted, out
from everstep.cli.tables import fitted
from everstep.core.simulation import compare
from everstep.core.simulation.compare import Interval
from everstep.core.simulation.engine import Run
from everstep.core.simulation.figures import (
    LADDER_SHARES,
    TABLE_4,
    TABLE_6,
    Figures,
    page_report,
)

_CURVE_ROWS, _CURVE_COLUMNS = 10, 72

_NO_INTERVAL = "One seed tells no interval; --seeds 5 does."


@dataclass(frozen=True, slots=True)
class Policies:
    """What all policies came to.

    Attributes:
        job: Name of the job.
        days: How long each run lasted.
        runs: Figures of each seed, by policy; Everstep's own comes first.
    """

    job: str
    days: float
    runs: Mapping[str, Sequence[Figures]]

    @property
    def own(self) -> Sequence[Figures]:
        """Everstep's own."""
        return next(iter(self.runs.values()))

    @property
    def of_own(self) -> str:
        """What the titles of its tables say."""
        num_seeds = len(self.own)
        mean = f", mean of {num_seeds} seeds" if num_seeds > 1 else ""
        return f": {next(iter(self.runs))}{mean}"


@dataclass(frozen=True, slots=True)
class Section:
    """A table.

    Attributes:
        title: What it is of.
        heads: What its columns are called.
        rows: Its cells.
        note: What its words mean; stands below it.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def sections(policies: Policies) -> list[Section]:
    """All tables."""
    found = [_spent(policies), _shares(policies), _table_4(policies), _table_6(policies)]
    found.append(_machines(policies))
    found = [replace(each, title=f"{each.title}{policies.of_own}") for each in found]
    if len(policies.runs) > 1:
        found += [_side_by_side(policies), _by_symptom(policies)]
    return found


def show(first: Run, policies: Policies) -> None:
    """Print everything for a person."""
    days = counted(policies.days, "day")
    out.print(f"[bold]{escape(policies.job)}[/bold], {days}: ETTR {ettr_of(policies)}")
    for line in curve(first, len(policies.own)):
        out.print(line, markup=False)
    for section in sections(policies):
        for table in fitted(section.title, section.heads, section.rows, out.width):
            out.print(table)
        if section.note:
            out.print(textwrap.fill(section.note, out.width), markup=False)


def ettr_of(policies: Policies) -> str:
    """What Everstep's own came to."""
    num_seeds = len(policies.own)
    of = f", 95 % interval over {num_seeds} seeds" if num_seeds > 1 else ""
    return f"{_percent(compare.ettr(policies.own))} %{of}"


def as_json(policies: Policies) -> dict[str, Any]:
    """For programs: intervals of ETTR (null for one seed), and all tables' figures of each seed."""
    return {
        "job": policies.job,
        "days": policies.days,
        "policies": {
            name: {
                "ettr": asdict(compare.ettr(runs)),
                "ahead_of_it": asdict(compare.ahead(policies.own, runs)),
                "seeds": [_plain(run) for run in runs],
            }
            for name, runs in policies.runs.items()
        },
    }


def curve(run: Run, num_seeds: int = 1) -> list[str]:
    """ETTR over time, cumulative (*) and of the hour before (.), as in the paper's Fig. 10.

    Args:
        run: Of the first seed.
        num_seeds: Of how many; where there are others it is said which one this is.
    """
    points = page_report(run, "").curve
    grid = [[" "] * _CURVE_COLUMNS for _ in range(_CURVE_ROWS + 1)]

    def put(at_s: float, ratio: float, mark: str) -> None:
        column = min(_CURVE_COLUMNS - 1, int(at_s / run.to_s * _CURVE_COLUMNS))
        grid[_CURVE_ROWS - round(ratio * _CURVE_ROWS)][column] = mark

    for at_s, _, hour in points:
        put(at_s, hour, ".")
    for at_s, whole, _ in points:
        put(at_s, whole, "*")
    lines = [
        f"{1 - row / _CURVE_ROWS:4.0%} |{''.join(cells).rstrip()}" for row, cells in enumerate(grid)
    ]
    of = f"seed {run.setting.seed} only, " if num_seeds > 1 else ""
    legend = f"{of}{counted(run.setting.days, 'day')}; * so far, . last hour"
    return [*lines, f"     +{'-' * _CURVE_COLUMNS}", f"      {legend}"]


def _spent(policies: Policies) -> Section:
    total_s = policies.days * 86_400
    kinds = policies.own[0].spent
    rows: list[tuple[str, ...]] = []
    for kind in kinds:
        seconds = statistics.fmean(run.spent[kind] for run in policies.own)
        rows.append((kind.value, f"{seconds:.0f}", f"{seconds / total_s:.2%}"))
    return Section("Where the time went", ("class", "seconds", "share"), tuple(rows))


def _shares(policies: Policies) -> Section:
    means = compare.mean_of([run.shares for run in policies.own])
    rows = tuple(
        (name.replace("_", " "), f"{share:.2f}", _known(LADDER_SHARES.get(name), ".2f"))
        for name, share in means.items()
    )
    return Section("What resolved incidents, in percent", ("by", "simulated", "paper"), rows)


def _table_4(policies: Policies) -> Section:
    flat = [{"|".join(key): share for key, share in run.table_4.items()} for run in policies.own]
    means = compare.mean_of([*flat])
    keys = [*means, *(key for key in map("|".join, TABLE_4) if key not in means)]
    rows: list[tuple[str, ...]] = []
    for key in keys:
        mechanism, category = key.split("|")
        dense, moe = TABLE_4.get((mechanism, category), (None, None))
        rows.append(
            (
                mechanism.replace("_", " "),
                category,
                f"{means.get(key, 0.0):.1f}",
                _known(dense, ".1f"),
                _known(moe, ".1f"),
            )
        )
    heads = ("mechanism", "category", "simulated", "paper, dense", "paper, MoE")
    return Section("Table 4, in percent of incidents", heads, tuple(rows))


def _table_6(policies: Policies) -> Section:
    rows: list[tuple[str, ...]] = []
    for symptom in sorted({symptom for run in policies.own for symptom in run.symptoms}):
        costs = [run.symptoms[symptom] for run in policies.own if symptom in run.symptoms]
        mean, worst = TABLE_6.get(symptom, (None, None))
        rows.append(
            (
                symptom,
                f"{statistics.fmean(one.incidents for one in costs):.1f}",
                f"{statistics.fmean(one.locate_mean_s for one in costs):.0f}",
                f"{max(one.locate_worst_s for one in costs):.0f}",
                f"{statistics.fmean(one.restart_mean_s for one in costs):.0f}",
                _known(mean, ".0f"),
                _known(worst, ".0f"),
            )
        )
    heads = (
        "symptom", "count", "locate mean", "locate worst", "restart mean", "paper mean",
        "paper worst",
    )  # fmt: skip
    note = (
        "count: incidents a run. locate: from the alert to the order to start; worst: of all"
        " runs. restart: from there to ranks that begin a step."
    )
    return Section("Table 6, in seconds", heads, tuple(rows), note)


def _machines(policies: Policies) -> Section:
    def mean(values: Iterable[float]) -> str:
        return f"{statistics.fmean([*values]):.1f}"

    own = policies.own
    rows = (
        ("faulty machines evicted", mean(run.right_evictions for run in own)),
        ("healthy machines evicted for good", mean(run.false_evictions for run in own)),
        ("evicted with their group, tested, let back in", mean(run.returned for run in own)),
        ("incidents closed with the faulty machine inside", mean(run.missed for run in own)),
        ("spares that took a slot", mean(run.standbys_used for run in own)),
        ("incidents that waited for a machine or a person", mean(run.held for run in own)),
        ("unproductive in the worst hour, s", mean(run.longest_unproductive_s for run in own)),
    )
    return Section("Machines", ("", "a run"), rows)


def _side_by_side(policies: Policies) -> Section:
    rows: list[tuple[str, ...]] = []
    for name, runs in policies.runs.items():
        own = runs is policies.own
        rows.append(
            (
                name,
                _percent(compare.ettr(runs)),
                "" if own else _ahead(compare.ahead(policies.own, runs)),
                f"{statistics.fmean(run.false_evictions for run in runs):.1f}",
                f"{statistics.fmean(run.missed for run in runs):.1f}",
                f"{statistics.fmean(run.standbys_used for run in runs):.0f}",
            )
        )
    heads = ("policy", "ETTR, %", "ahead by, points", "false evictions", "missed", "spares used")
    own_name = next(iter(policies.runs))
    ahead = (
        f"ahead by: {own_name} before that policy, seed by seed, with the 95 % interval of that"
        " difference; where it holds 0, the two cannot be told apart."
        if len(policies.own) > 1
        else f"ahead by: {own_name} before that policy. {_NO_INTERVAL}"
    )
    note = (
        f"{ahead} false evictions: machines without a fault that were taken out for good. missed:"
        " incidents that closed while a machine that caused them still held a slot. spares used:"
        " machines that took over a slot. All are means of a run."
    )
    return Section("Policies, with the same faults", heads, tuple(rows), note)


def _ahead(found: Interval) -> str:
    text = f"{100 * found.mean:+.2f}"
    if found.low is None or found.high is None:
        return text
    told = "holds 0" if found.holds(0.0) else "clear"
    return f"{text} ({100 * found.low:+.2f} to {100 * found.high:+.2f}), {told}"


def _by_symptom(policies: Policies) -> Section:
    lost = {name: compare.lost_per_day_s(r, policies.days) for name, r in policies.runs.items()}
    symptoms = sorted({symptom for each in lost.values() for symptom in each})
    rows = tuple(
        (symptom, *(f"{each.get(symptom, 0.0):.0f}" for each in lost.values()))
        for symptom in symptoms
    )
    return Section("Seconds lost a day, by symptom", ("symptom", *lost), rows)


def _plain(run: Figures) -> dict[str, Any]:
    return {
        "ettr": run.ettr,
        "spent": {kind.value: seconds for kind, seconds in run.spent.items()},
        "shares": dict(run.shares),
        "table_4": {"/".join(key): share for key, share in run.table_4.items()},
        "symptoms": {name: asdict(costs) for name, costs in run.symptoms.items()},
        "longest_unproductive_s": run.longest_unproductive_s,
        "false_evictions": run.false_evictions,
        "right_evictions": run.right_evictions,
        "returned": run.returned,
        "missed": run.missed,
        "standbys_used": run.standbys_used,
        "held": run.held,
    }


def _percent(found: Interval) -> str:
    text = f"{100 * found.mean:.2f}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ({100 * found.low:.2f} to {100 * found.high:.2f})"


def _known(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
