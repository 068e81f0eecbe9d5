"""`everstep plan --ladder`: what is done about which evidence, made from the ladder itself."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from everstep.core.ladder import Decision
from everstep.core.ladder_table import ladder_rows
from everstep.core.vocabulary import Mode, Rung
from everstep.spec.job import JobSpec

_MARKS = {Mode.OBSERVE: " (noted only)", Mode.APPROVE: " (if a person agrees)"}


def plan_ladder(spec: JobSpec) -> dict[str, Any]:
    """The ladder of a job.

    Returns:
        `ladder`: for each kind of evidence the rungs with their modes, for as long as the failure
        comes back. `unavailable`: rungs that this job cannot climb, each with why.
    """
    unavailable = spec.unavailable_rungs()
    rows = ladder_rows(spec.ladder_policy(), unavailable)
    return {
        "ladder": [
            {
                "evidence": row.evidence,
                "rungs": [{"rung": d.rung.value, "mode": _mode(d)} for d in row.climbs],
            }
            for row in rows
        ],
        "unavailable": {rung.value: reason for rung, reason in unavailable.items()},
    }


def show_ladder(spec: JobSpec) -> None:
    """Print the ladder for a person."""
    unavailable, policy = spec.unavailable_rungs(), spec.ladder_policy()
    console = Console(highlight=False)
    table = Table("evidence", "rungs, while the failure comes back", box=box.SIMPLE_HEAD)
    for row in ladder_rows(policy, unavailable):
        table.add_row(row.evidence, " > ".join(_text(decision) for decision in row.climbs))
    console.print(f"[bold]{spec.name}[/bold]: each rung once an incident")
    console.print(table)
    for rung, reason in unavailable.items():
        console.print(f"Never climbed: {rung.value}: {reason}")
    console.print("rollback is climbed where an earlier code version of the job is known.")
    console.print(
        f"A person is asked before more than {policy.max_evicted} of {policy.machines} machines go"
        f" within {spec.safety.window_s:g} s, and after {policy.max_restarts_without_progress}"
        " restarts without a new step."
    )


def _mode(decision: Decision) -> str:
    return "person" if decision.rung is Rung.PAGE else decision.mode.value


def _text(decision: Decision) -> str:
    mark = "" if decision.rung is Rung.PAGE else _MARKS.get(decision.mode, "")
    return f"{decision.rung.value}{mark}"
