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
from everstep.core.errors import PermanentError, TransientError
from everstep.core.record import IncidentRecord
from everstep.core.report import Report, report
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.standing import last_told, last_told_s
from everstep.workers.steps import load_steps
from everstep.workflows import story

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
        if found.ending:
            out.print(f"The run {found.ending}: this goes up to {story.clock(found.to_s)}.")
        out.print(
            f"ETTR {found.ettr:.2%}: {counted(found.steps, 'step')} in"
            f" {found.to_s - found.from_s:.1f} s"
        )


def of_run(folder: RunFolder, records: Sequence[IncidentRecord]) -> Report:
    """The figures of a run, ended or under way, with these incidents.

    Of one that was stopped or cut off, up to then, as far as its folder tells it.

    Raises:
        TransientError: It has not begun to train.
        PermanentError: It never did, or when it began was not kept.
    """
    steps, state, ending = load_steps(folder.steps), last_told(folder), folder.ending()
    began_s = state.get("job_started_at_s")
    if began_s is None and not ending:
        began_s = asyncio.run(ask(folder)).get("started_at_s")
    if began_s is None and not ending:
        raise TransientError(f"{folder.path}: the job has not been started yet; try again later")
    if began_s is None:
        asked = "job_started_at_s" in state
        what = "had not begun when it was asked last" if asked else "told nobody when it began"
        raise PermanentError(
            f"{folder.path}: the run {ending}, and its job {what}: there is no report"
        )
    newest_s = max([float(began_s), last_told_s(folder), *(seen.at_s for seen in steps)])
    ended_s = state.get("ended_at_s", newest_s) if ending else time.time()
    said = "" if ending == "finished" else ending
    return report(folder.job(), steps, records, float(began_s), float(ended_s), said)


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
            figures = f"{one.incidents}", f"{one.mean_s:.2f}", f"{one.worst_s:.2f}"
            table.add_row("\nthen ".join(one.failures()), *figures, one.resolved())
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
