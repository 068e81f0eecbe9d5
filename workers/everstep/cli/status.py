"""`everstep status`: how a run stands now."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from everstep.cli import standing, watching
from everstep.cli.console import out
from everstep.cli.find import RunArgument, find_run, of_run
from everstep.core.errors import InputError
from everstep.workers.local.folder import RunFolder
from everstep.workflows import story

NOTES_SHOWN = 5

_BEFORE_TRAINING = ("starting", "gathering machines")


def status_command(
    run: RunArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on showing it until it ends, or Ctrl-C.")
    ] = False,
) -> None:
    """Show how a run stands: phase, step, who holds which slot."""
    folder = find_run(run)
    if watch and as_json:
        raise InputError("--watch", "it is for people", "Leave it out, or --json.")
    if watch:
        raise typer.Exit(asyncio.run(watching.watch(folder)))
    found = asyncio.run(standing.describe(folder))
    if as_json:
        out.print_json(json.dumps(found))
        return
    print_status(folder, found)


def print_status(folder: RunFolder, found: dict[str, Any]) -> None:
    """What `describe` found, for a person."""
    where = escape(str(folder.path))
    out.print(f"[bold]{found['job']}[/] in {where}: {found['phase']}")
    if found["missing"]:
        out.print(f"waits for: {escape(of_run(found['missing'], folder))}")
    if number := found["active_incident"]:
        out.print(f"what led to it: everstep incident show {number} {where}")
    step = "none yet" if found["step"] is None else str(found["step"])
    out.print(f"step finished by all ranks: {step}; attempt {found['attempt']}")
    if found["ui"]:
        out.print(f"Temporal's web UI: {found['ui']}")
    _print_machines(found)
    out.print(f"incidents: {found['incidents']} (everstep incidents {where})")
    for alert in found["noted"]:
        out.print(f"noted at {story.clock(alert['at_s'])}: {escape(alert['detail'])}")
    for at_s, text in standing.notes(found)[-NOTES_SHOWN:]:
        out.print(f"{story.clock(at_s)} {escape(text)}")


def _print_machines(found: dict[str, Any]) -> None:
    if found["slots"]:
        table = Table("slot", "machine")
        for slot, machine in enumerate(found["slots"]):
            table.add_row(str(slot), machine or "vacant")
        out.print(table)
    if found["phase"] in _BEFORE_TRAINING:
        out.print(f"machines that are ready: {', '.join(found['standbys']) or 'none yet'}")
    elif found["slots"]:
        out.print(f"standbys: {', '.join(found['standbys']) or 'none'}{standby_text(found)}")
        out.print(f"evicted: {', '.join(found['evicted']) or 'none'}")
    for machine in found["barred"]:
        out.print(f"{machine} was evicted too often to join by itself: everstep machine admit")


def standby_text(found: dict[str, Any]) -> str:
    """How many there should be and why, and who is on the way."""
    plan = found["standby_plan"]
    if plan is None:
        return ""
    text = f" (of {plan['wanted']} wanted"
    if (rate := plan["failure_rate_per_day"]) is not None:
        text += (
            f", at {rate:.3g} failures a machine and day; own history: {plan['failures']} in"
            f" {plan['machine_days']:.3g} machine-days"
        )
    text += ")"
    if plan["arriving"]:
        text += f"; being tested: {', '.join(plan['arriving'])}"
    return text + (f"; asked the cluster for {plan['asked_for']}" if plan["asked_for"] else "")
