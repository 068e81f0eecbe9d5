"""`everstep report`: what a run's time went into, and what its incidents were."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from everstep.cli.console import counted, out
from everstep.cli.find import RunArgument, find_run
from everstep.cli.html_page import write
from everstep.cli.incidents import current_records
from everstep.cli.report_html import page
from everstep.cli.standing import ask
from everstep.core.errors import InputError
from everstep.core.record import IncidentRecord
from everstep.core.report import Report, report
from everstep.workers.local.folder import RunFolder
from everstep.workers.steps import load_steps

MEANING = {
    "productive": "steps done for the first time",
    "redone": "steps, or parts of one, that are done again",
    "checkpoint": "training stood until a checkpoint was far enough",
    "detect": "from a fault to the incident that it opens",
    "locate": "evidence, rungs and tests, up to the restart",
    "restart": "from the restart to its first step",
    "held": "waiting for a person or a machine",
    "update": "other code or arguments that a person asked for",
    "start": "up to the first step",
    "end": "after the last step",
}


def report_command(
    run: RunArgument = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="One page that needs no network, for others."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show where a run's time went, and its incidents by symptom, rung and machine."""
    folder = find_run(run)
    records = current_records(folder)
    found = of_run(folder, records)
    if html is not None:
        write(html, page(found, records))
        out.print(f"written to {html}")
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"ettr": found.ettr}, indent=2))
    elif html is None:
        for table in _tables(found):
            out.print(table)
        out.print(
            f"ETTR {found.ettr:.2%}: {counted(found.steps, 'step')} in"
            f" {found.to_s - found.from_s:.1f} s"
        )


def of_run(folder: RunFolder, records: Sequence[IncidentRecord]) -> Report:
    """The figures of a run, ended or under way, with these incidents.

    Raises:
        InputError: It has not begun to train.
    """
    steps, state = load_steps(folder.steps), folder.read_state()
    began_s = state.get("job_started_at_s")
    if began_s is None and folder.is_running():
        began_s = asyncio.run(ask(folder)).get("started_at_s")
    if began_s is None:
        raise InputError(str(folder.path), "the job has not been started yet", "Try again later.")
    ended_s = state.get("ended_at_s")
    if ended_s is None:
        # A run that was cut off has told nothing since its last step.
        newest_s = max((seen.at_s for seen in steps), default=float(began_s))
        ended_s = time.time() if folder.is_running() else newest_s
    return report(folder.job(), steps, records, float(began_s), float(ended_s))


def _tables(found: Report) -> Iterable[Table]:
    wall_s = max(found.to_s - found.from_s, 1e-9)
    spent = Table("time went into", "seconds", "share", "which is", title=f"job {found.job}")
    for kind, seconds in found.spent.items():
        if seconds:
            spent.add_row(kind, f"{seconds:.2f}", f"{seconds / wall_s:.1%}", MEANING[kind])
    yield spent
    if found.symptoms:
        table = Table("symptom", "incidents", "mean s", "worst s", "resolved by")
        for one in found.symptoms:
            rungs = ", ".join(f"{rung} {count}" for rung, count in one.rungs)
            figures = f"{one.incidents}", f"{one.mean_s:.2f}", f"{one.worst_s:.2f}"
            table.add_row(one.symptom, *figures, rungs)
        yield table
    for title, counts in (
        ("evictions by machine", found.machines),
        ("incidents by code version", found.codes),
    ):
        if counts:
            table = Table(title, "how often")
            for name, count in counts:
                table.add_row(name or "unknown", str(count))
            yield table
