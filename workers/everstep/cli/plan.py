"""`everstep plan`: what a spec means, before anything runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from everstep.cli.plan_ladder import plan_ladder, show_ladder
from everstep.cli.plan_replay import parse_faulty, plan_replay, show_replay
from everstep.core.errors import InputError
from everstep.core.groups import KINDS, Layout
from everstep.core.placement import BackupPlan, ExposedGroup, exposed_groups
from everstep.core.shard import NUM_SLOTS
from everstep.core.standby import NOTHING_SEEN, Seen
from everstep.spec.job import JobSpec
from everstep.spec.load import load_spec, read_spec

_ALWAYS_SHOWN = frozenset({"tp", "pp", "dp"})
_MACHINE_ROWS = 16
_RUNS_SHOWN = 4
_CHOICE = "Give --ladder alone, or --replay, which --faulty belongs to."


@dataclass(frozen=True, slots=True)
class _Shown:
    """One thing that there is to show, for programs and for people."""

    as_values: Callable[[], dict[str, Any]]
    as_text: Callable[[], None]


def plan_command(
    spec: Annotated[Path, typer.Argument(help="The job's YAML file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    ladder: Annotated[
        bool, typer.Option("--ladder", help="Show what is done about which evidence instead.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Show the groups of a dual-phase replay instead.")
    ] = False,
    faulty: Annotated[
        str, typer.Option(help="With --replay: machines that make their groups fail: 13,17.")
    ] = "",
    seen: Annotated[
        str,
        typer.Option(
            metavar="FAILURES/DAYS",
            help="Standbys after so many failures in so many machine-days: 7/2400.",
        ),
    ] = "",
) -> None:
    """Show machines, ranks, parallel groups, backups and standbys of a job; run nothing."""
    try:
        # The layout alone tells these two; the job's code may be on other machines.
        job = read_spec(spec) if ladder or replay else load_spec(spec)
        bad = parse_faulty(faulty, job.machines)
        history = parse_seen(seen)
        if (ladder and replay) or (faulty and not replay):
            raise InputError("options", "--ladder, --replay and --faulty do not fit", _CHOICE)
    except InputError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    shown = _Shown(lambda: plan(job, history), lambda: _show(job, history))
    if replay:
        shown = _Shown(lambda: plan_replay(job, bad), lambda: show_replay(job, bad))
    elif ladder:
        shown = _Shown(lambda: plan_ladder(job), lambda: show_ladder(job))
    if as_json:
        typer.echo(json.dumps(shown.as_values(), indent=2))
    else:
        shown.as_text()


def parse_seen(text: str) -> Seen:
    """Failures and machine-days of `7/2400`; nothing for an empty text.

    Raises:
        InputError: It has another form.
    """
    if not text:
        return NOTHING_SEEN
    found = re.fullmatch(r"(\d+)/(\d+(?:\.\d+)?)", text.strip())
    if found is None:
        fix = "Give failures and machine-days, such as 7/2400."
        raise InputError(f"--seen {text}", "is not FAILURES/DAYS", fix)
    return Seen(int(found[1]), float(found[2]))


def plan(spec: JobSpec, seen: Seen = NOTHING_SEEN) -> dict[str, Any]:
    """What a spec means, as JSON values.

    Args:
        spec: The job.
        seen: What the job has seen of its machines' failures, for the number of standbys.

    Returns:
        `machines` (slot and ranks of each), `ranks` (machine and coordinates of each), `groups`
        (lists of ranks by kind: tp, pp, dp, and others of a size above 1), `backup` (rank to the
        rank whose machine holds its copy), `unprotected` (rank to the reason), `exposed` (the
        groups that cannot be evicted whole without losing all copies of some ranks' state),
        `standby` (count and the rule that it follows from), `memory` (what checkpoints take of a
        machine's, in times of a rank's state: of what is each rank's own, and of what a DP group
        has in common), and `storage` (the spec's fields, or None). Ranks that are keys are texts,
        as in JSON.
    """
    layout, backup = spec.layout(), spec.backup_plan()
    kinds = _shown_kinds(layout)
    return {
        "machines": [
            {"machine": slot, "ranks": list(layout.ranks_of(slot))}
            for slot in range(layout.num_machines)
        ],
        "ranks": [
            {
                "rank": rank,
                "machine": layout.machine_of(rank),
                "coordinates": _coordinates(layout, kinds, rank),
            }
            for rank in range(layout.world_size)
        ],
        "groups": {kind: [list(group) for group in layout.groups(kind)] for kind in kinds},
        "backup": {str(rank): holder for rank, holder in backup.holder.items()},
        "unprotected": {str(rank): reason for rank, reason in backup.unprotected.items()},
        "exposed": [
            {
                "kind": exposed.group.kind,
                "ranks": list(exposed.group.ranks),
                "machines": list(exposed.group.machines),
                "lost": list(exposed.lost),
                "reason": exposed.reason,
            }
            for exposed in exposed_groups(layout, backup, bool(spec.checkpoint.replicated))
        ],
        "standby": {
            "count": spec.standby_count(seen),
            "rule": _standby_rule(spec, seen),
            "failure_rate_per_day": spec.standby.rate(seen),
            "quantile": spec.standby.quantile,
            "prior_machine_days": spec.standby.prior_machine_days,
        },
        "memory": _memory(spec),
        "storage": None
        if spec.checkpoint.storage is None
        else spec.checkpoint.storage.model_dump(),
    }


def _shown_kinds(layout: Layout) -> tuple[str, ...]:
    """Dimensions worth showing, in the job's order; those that it leaves out come last."""
    kinds = (*layout.order, *(kind for kind in KINDS if kind not in layout.order))
    return tuple(kind for kind in kinds if kind in _ALWAYS_SHOWN or layout.sizes[kind] > 1)


def _coordinates(layout: Layout, kinds: Sequence[str], rank: int) -> dict[str, int]:
    at = layout.coordinates(rank)
    return {kind: at[kind] for kind in kinds}


def _standby_rule(spec: JobSpec, seen: Seen) -> str:
    count, rule = spec.standby_count(seen), spec.standby
    if rule.count is not None:
        return f"The spec asks for {count}."
    text = (
        f"With probability {rule.quantile}, no more than {count} of {spec.machines} machines fail"
        f" on the same day, when each fails with probability {rule.rate(seen):.3g}"
    )
    if rule.prior_machine_days is None:
        return f"{text}."
    if seen != NOTHING_SEEN:
        return (
            f"{text}: what {seen.failures} failures in {seen.machine_days:g} machine-days make of"
            f" {rule.failure_rate_per_day}, which counts for {rule.prior_machine_days:g}."
        )
    return (
        f"{text}. The job learns from its own failures; this rate counts for"
        f" {rule.prior_machine_days:g} machine-days."
    )


def _memory(spec: JobSpec) -> dict[str, Any]:
    layout, backup = spec.layout(), spec.backup_plan()
    slots = range(layout.num_machines)
    held = max(len(backup.held_by(layout, slot)) for slot in slots)
    times = NUM_SLOTS * (layout.gpus_per_machine + held)
    replicated = list(spec.checkpoint.replicated)
    return {
        "steps": NUM_SLOTS,
        "own_ranks": layout.gpus_per_machine,
        "held_ranks": held,
        "times_own": times,
        "replicated": replicated,
        "times_replicated": times / layout.dp if replicated else times,
    }


def _memory_text(spec: JobSpec) -> str:
    memory, dp = _memory(spec), spec.parallelism.dp
    text = (
        f"Memory for checkpoints on a machine: {memory['times_own']} times a rank's state"
        f" ({memory['steps']} steps of {memory['own_ranks']} own and"
        f" {memory['held_ranks']} held ranks)"
    )
    if not memory["replicated"]:
        return text
    names = ", ".join(memory["replicated"])
    return (
        f"{text}; of {names}, which each of {dp} ranks of a DP group keeps a part of,"
        f" {memory['times_replicated']:g} times, and up to {memory['own_ranks']} times more"
        " while ranks restore"
    )


def _storage_text(spec: JobSpec) -> str:
    storage = spec.checkpoint.storage
    if storage is None:
        return "Storage: none; steps are in the machines' memory alone (checkpoint.storage)"
    when = [
        *([f"every {storage.every_steps} steps"] if storage.every_steps else []),
        *([f"every {storage.every_s:g} s"] if storage.every_s else []),
    ]
    return f"Storage: {' and '.join(when)} to {storage.path}, the newest {storage.keep} are kept"


def _show(spec: JobSpec, seen: Seen) -> None:
    layout, backup = spec.layout(), spec.backup_plan()
    console = Console(highlight=False)
    console.print(
        f"[bold]{spec.name}[/bold]: {layout.world_size} ranks on {layout.num_machines} machines"
        f" of {layout.gpus_per_machine}, order {spec.parallelism.order} (first varies fastest)"
    )
    console.print(_machine_table(layout, backup))
    exposed = exposed_groups(layout, backup, bool(spec.checkpoint.replicated))
    console.print(_group_table(layout, exposed))
    for kind in layout.wide_kinds:
        if of_kind := [one for one in exposed if one.group.kind == kind]:
            console.print(_warning(layout, of_kind))
    for reason, ranks in _by_reason(backup).items():
        console.print(f"Without a backup: {_ranges('rank', ranks)}: {escape(reason)}")
    console.print(escape(_memory_text(spec)))
    console.print(escape(_storage_text(spec)))
    console.print(f"Standby machines: {spec.standby_count(seen)}. {_standby_rule(spec, seen)}")


def _machine_table(layout: Layout, backup: BackupPlan) -> Table:
    kinds = _shown_kinds(layout)
    table = Table("machine", "ranks", *kinds, "copies held by", box=box.SIMPLE_HEAD)
    slots = range(layout.num_machines)
    head = slots if len(slots) <= _MACHINE_ROWS else slots[: _MACHINE_ROWS - 2]
    for slot in head:
        table.add_row(*_machine_row(layout, backup, kinds, slot))
    if head != slots:
        table.add_row("...", f"{len(slots) - len(head) - 1} machines more: see --json")
        table.add_row(*_machine_row(layout, backup, kinds, slots[-1]))
    return table


def _machine_row(
    layout: Layout, backup: BackupPlan, kinds: Sequence[str], slot: int
) -> Iterator[str]:
    ranks = layout.ranks_of(slot)
    at = [layout.coordinates(rank) for rank in ranks]
    yield str(slot)
    yield _folded(ranks)
    for kind in kinds:
        yield _folded({coordinates[kind] for coordinates in at})
    holders = {layout.machine_of(backup.holder[rank]) for rank in ranks if rank in backup.holder}
    yield _ranges("machine", holders) if holders else "nobody"


def _group_table(layout: Layout, exposed: Sequence[ExposedGroup]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for header in ("groups", "size", "number", "machines each", "the first"):
        table.add_column(header, no_wrap=True)
    table.add_column("evicting one loses")
    for kind in _shown_kinds(layout):
        groups = layout.groups(kind)
        occupied = [layout.machines_of(group) for group in groups]
        table.add_row(
            kind,
            str(layout.sizes[kind]),
            str(len(groups)),
            _folded({len(machines) for machines in occupied}),
            _ranges("rank", groups[0]),
            _worst_eviction(layout, kind, [one for one in exposed if one.group.kind == kind]),
        )
    return table


def _worst_eviction(layout: Layout, kind: str, exposed: Sequence[ExposedGroup]) -> str:
    """What the eviction that costs most would cost; a rank alone is no group to evict."""
    if layout.sizes[kind] == 1:
        return "-"
    if not exposed:
        return "nothing"
    worst = max(exposed, key=lambda one: len(one.lost))
    if len(worst.lost) == layout.world_size:
        return "the state of every rank"
    machines = _ranges("machine", worst.group.machines)
    return f"the state of {_ranges('rank', worst.lost)} (with {machines})"


def _warning(layout: Layout, exposed: Sequence[ExposedGroup]) -> str:
    """What to know beforehand about groups of one kind."""
    kind, first = exposed[0].group.kind, exposed[0]
    number = len(layout.groups(kind))
    which = f"{len(exposed)} of {number} {kind} groups" if number > 1 else f"the {kind} group"
    return (
        f"Unprotected: {which}. Evicting {_ranges('rank', first.group.ranks)} whole"
        f" ({_ranges('machine', first.group.machines)}) leaves no copy of the state of"
        f" {_ranges('rank', first.lost)}: {first.reason}."
    )


def _by_reason(backup: BackupPlan) -> dict[str, list[int]]:
    by_reason: dict[str, list[int]] = {}
    for rank, reason in backup.unprotected.items():
        by_reason.setdefault(reason, []).append(rank)
    return by_reason


def _ranges(noun: str, numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    return f"{noun}{'' if len(numbers) == 1 else 's'} {_folded(numbers)}"


def _folded(numbers: Iterable[int]) -> str:
    """Numbers as ranges, such as "0-3, 8" or "0-56 by 8"; cut off after a few ranges."""
    runs = list(_runs(sorted(numbers)))
    texts = [_run_text(run) for run in runs[:_RUNS_SHOWN]]
    if len(runs) > _RUNS_SHOWN:
        texts.append("...")
    return ", ".join(texts)


def _run_text(run: range) -> str:
    if len(run) == 1:
        return str(run[0])
    by = f" by {run.step}" if run.step > 1 else ""
    return f"{run[0]}-{run[-1]}{by}"


def _runs(ordered: Sequence[int]) -> Iterator[range]:
    """Ascending numbers as evenly spaced runs; a pair is a run only when it is adjacent."""
    at = 0
    while at < len(ordered):
        step = ordered[at + 1] - ordered[at] if at + 1 < len(ordered) else 1
        end = at + 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        if end - at == 2 and step > 1:
            end = at + 1
        yield range(ordered[at], ordered[end - 1] + 1, step)
        at = end
