"""`everstep plan --replay`: which groups a replay would run, and what it would conclude."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from everstep.core import replay
from everstep.core.errors import InputError
from everstep.core.suspicion import Group, Trial, TrialOutcome
from everstep.spec.job import JobSpec

_GROUPS_SHOWN = 12

_CONCLUSIONS = {
    TrialOutcome.FAILED: "found",
    TrialOutcome.PASSED: "not_reproduced",
    TrialOutcome.COULD_NOT_TELL: "could_not_tell",
}


def parse_faulty(text: str, machines: int) -> tuple[int, ...]:
    """The machines of `--faulty 13,17`, ascending.

    Raises:
        InputError: Not numbers, or no machines of the job.
    """
    fix = f"Give numbers of machines from 0 to {machines - 1}, such as 0,{machines - 1}."
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not part.isdecimal() or int(part) >= machines:
            raise InputError("--faulty", f"{part!r} is not a machine", fix)
    return tuple(sorted({int(part) for part in parts}))


def plan_replay(spec: JobSpec, faulty: tuple[int, ...]) -> dict[str, Any]:
    """A replay of the job in which these machines, and no others, make their groups fail.

    Returns:
        `m` and `n` of Algorithm 1, `machines_per_copy` of the model, `repeats` of each trial,
        `rounds` (groups with machines and outcome), `conclusion`, `evict_machines`, `undecided`
        and `reason`.
    """
    scheme = replay.scheme_for(spec.layout())
    rounds: list[list[Trial]] = []
    purposes: list[str] = []
    while isinstance(wanted := replay.next_round(scheme, rounds), replay.Round):
        rounds.append([Trial(group, _outcome(group, faulty)) for group in wanted.groups])
        purposes.append(wanted.purpose)
    return {
        "machines": scheme.machines,
        "machines_per_copy": scheme.unit,
        "m": scheme.m,
        "n": scheme.n,
        "repeats": replay.repeats_for(spec.replay.shows_ratio, spec.replay.found_ratio),
        "faulty": list(faulty),
        "rounds": [
            {"round": number, "purpose": purpose, "groups": [_group(t) for t in trials]}
            for number, (purpose, trials) in enumerate(zip(purposes, rounds, strict=True), start=1)
        ],
        "conclusion": _CONCLUSIONS[wanted.outcome],
        "evict_machines": list(wanted.evict),
        "undecided": list(wanted.undecided),
        "reason": wanted.reason,
    }


def _outcome(group: Group, faulty: tuple[int, ...]) -> TrialOutcome:
    return TrialOutcome.FAILED if {*faulty} & {*group.machines} else TrialOutcome.PASSED


def _group(trial: Trial) -> dict[str, Any]:
    return {
        "machines": list(trial.group.machines),
        "fillers": list(trial.group.fillers),
        "outcome": trial.outcome.value,
    }


def show_replay(spec: JobSpec, faulty: tuple[int, ...]) -> None:
    """Print a replay for a person."""
    found = plan_replay(spec, faulty)
    console = Console(highlight=False)
    console.print(
        f"[bold]{spec.name}[/bold]: {found['machines']} machines, one copy of the model on"
        f" {found['machines_per_copy']}; m = {found['m']}, n = {found['n']}; each trial runs up to"
        f" {found['repeats']} times"
    )
    if spec.replay.steps == 0:
        console.print("The rung is left out for this job: replay.steps is 0.")
    for each in found["rounds"]:
        console.print(_round_table(each))
    machines = ", ".join(map(str, found["evict_machines"])) or "nobody"
    console.print(f"Evict: {machines}. {escape(found['reason'])}.")


def _round_table(each: dict[str, Any]) -> Table:
    title = f"round {each['round']}, {each['purpose']}"
    table = Table("group", "machines", "outcome", title=title, box=box.SIMPLE_HEAD)
    groups: list[dict[str, Any]] = each["groups"]
    failed = [n for n, group in enumerate(groups) if group["outcome"] == TrialOutcome.FAILED]
    others = [n for n in range(len(groups)) if n not in failed]
    shown = sorted([*failed, *others][:_GROUPS_SHOWN])
    for number in shown:
        mark = "[bold]failed[/bold]" if number in failed else "passed"
        table.add_row(str(number), ", ".join(map(str, groups[number]["machines"])), mark)
    if len(shown) < len(groups):
        table.add_row("...", f"{len(groups) - len(shown)} groups more: see --json", "")
    return table
