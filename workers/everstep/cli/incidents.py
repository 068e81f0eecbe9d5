"""`everstep incidents` and `everstep incident ...`: what went wrong and what was done about it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter
from rich.table import Column, Table
from rich.text import Text
from temporalio.service import RPCError

from everstep.activities.evidence import EvidenceStore
from everstep.cli import html_page, incident_html
from everstep.cli.asking import PATIENCE_S, ask, connect
from everstep.cli.console import complain, out
from everstep.cli.find import RunArgument, RunOption, find_run, use_server_of
from everstep.cli.person import person
from everstep.cli.stack_view import show_grid
from everstep.core.errors import EverstepError, InputError, TransientError
from everstep.core.record import Climb, IncidentRecord, StackRecord, TimelineEntry
from everstep.core.vocabulary import ClimbOutcome, Observer, Outcome, Rung
from everstep.workers import handles
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.standing import kept_incidents
from everstep.workflows import story
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import Decision

app = typer.Typer(
    help="Look at one incident, or let it go on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

_RECORDS = TypeAdapter(list[IncidentRecord])

MAX_ALERTS_IN_A_ROW = 5

NumberArgument = Annotated[int, typer.Argument(metavar="N", help="Number of the incident, from 1.")]
NoteOption = Annotated[str, typer.Option(help="Why, for the record.")]


def list_command(
    run: RunArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List a run's incidents."""
    folder = find_run(run)
    records = current_records(folder)
    if as_json:
        out.print_json(_RECORDS.dump_json(records).decode())
        return
    if not records:
        out.print(f"No incidents in {folder.path}.")
        return
    out.print(incident_table(records))


@app.command("show")
def show_command(
    incident: NumberArgument,
    run: RunArgument = None,
    run_option: RunOption = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="One page that needs no network, for others."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell one incident as a timeline, with its evidence."""
    record = _one(find_run(run or run_option), incident)
    if html is not None:
        html_page.write(html, incident_html.page(record, _pictures(record)))
        if not as_json:
            out.print(Text(f"written to {html}"))
            return
    if as_json:
        out.print_json(json.dumps(TypeAdapter(IncidentRecord).dump_python(record, mode="json")))
        return
    out.print(timeline_table(record))
    if record.climbs:
        out.print(climbs_table(record))
    out.print(Text(story.summary(record)))
    for stacks in record.stacks:
        _show_stacks(stacks)


def _show_stacks(stacks: StackRecord) -> None:
    """One judgement, its grid, and where it is kept."""
    out.print(Text(f"attempt {stacks.attempt}, by the ranks' stacks: {stacks.verdict}"))
    for reason in stacks.reasons:
        out.print(Text(f"  {reason}"))
    try:
        show_grid(EvidenceStore(stacks.evidence).get(stacks.grid).decode(errors="replace"))
    except EverstepError as error:
        complain(f"the grid of attempt {stacks.attempt} is not there: {error}")
    out.print(Text(f"attempt {stacks.attempt}, as SVG: {stacks.picture} in {stacks.evidence}"))


def _pictures(record: IncidentRecord) -> dict[str, bytes]:
    """Pictures by digest; one that is not there any more is said to be that on the page."""
    found: dict[str, bytes] = {}
    for stacks in record.stacks:
        with contextlib.suppress(EverstepError):
            found[stacks.picture] = EvidenceStore(stacks.evidence).get(stacks.picture)
    return found


@app.command("approve")
def approve_command(
    incident: NumberArgument,
    run: RunArgument = None,
    run_option: RunOption = None,
    note: NoteOption = "",
) -> None:
    """Let a held incident go on past what holds it."""
    job = _answer(incident, run or run_option, note, yes=True)
    out.print(f"Approved: incident {incident} of {job} goes on.")


@app.command("deny")
def deny_command(
    incident: NumberArgument,
    run: RunArgument = None,
    run_option: RunOption = None,
    note: NoteOption = "",
) -> None:
    """Say no to the rung that a held incident asks for: the next one is tried."""
    job = _answer(incident, run or run_option, note, yes=False)
    out.print(f"Denied: incident {incident} of {job} leaves that rung out.")


def _answer(incident: int, run: Path | None, note: str, yes: bool) -> str:
    """Answer an incident that waits for a person; the name of its job.

    Raises:
        InputError: There is no such incident, it waits for nothing or for something else by now, or
            somebody was quicker.
    """
    folder = find_run(run)
    record = _one(folder, incident)
    if record.outcome is not Outcome.HELD:
        raise InputError(
            f"incident {incident}",
            f"it is {record.outcome} and waits for nobody's word",
            f"See: everstep incident show {incident}.",
        )
    use_server_of(folder)
    job = folder.job()
    decision = Decision(yes, person(), note, record.missing)
    # One that was closed since then.
    over = InputError(f"incident {incident}", "it is over", "See: everstep incidents.")

    async def send() -> None:
        client = await connect(PATIENCE_S)
        handle = handles.of_incident(client, job, incident)
        await handle.execute_update(ResolveIncident.decide, decision)  # pyright: ignore[reportUnknownMemberType]

    ask(send(), over)
    return job


def current_records(folder: RunFolder) -> list[IncidentRecord]:
    """Incidents by number: from the files of the run, the open one from its workflow.

    Of a run that has ended, the open one is as its workflow told it last.
    """
    saved = kept_incidents(folder)
    if folder.is_running() and "temporal" in folder.read_state():
        live = None
        # The run may end, or its server be away, just now; what is saved is still true.
        with contextlib.suppress(TransientError, RPCError):
            live = asyncio.run(_open_record(folder))
        if live is not None:
            saved[live.incident] = live
    return [saved[number] for number in sorted(saved)]


async def _open_record(folder: RunFolder) -> IncidentRecord | None:
    use_server_of(folder)
    job = folder.job()
    client = await connect(5.0)
    status = await handles.of_job(client, job).query(RunJob.status)
    if status.active_incident is None:
        return None
    handle = handles.of_incident(client, job, status.active_incident)
    return await handle.query(ResolveIncident.record)


def _one(folder: RunFolder, incident: int) -> IncidentRecord:
    records = current_records(folder)
    for record in records:
        if record.incident == incident:
            return record
    known = ", ".join(str(record.incident) for record in records) or "none"
    what = f"there is none of that number in {folder.path}"
    raise InputError(f"incident {incident}", what, f"Known: {known}.")


def incident_table(records: list[IncidentRecord]) -> Table:
    """One line an incident, which fits into 80 columns: no word of it is cut."""
    # What cannot be wrapped takes as much as it needs; lists of machines and rungs the rest.
    table = Table("#", Column("symptom", no_wrap=True), show_edge=False, pad_edge=False)
    table.add_column("where", overflow="fold", min_width=len("where"))
    table.add_column("rungs", min_width=max(map(len, Rung)) + len(","))
    table.add_column("outcome", no_wrap=True)
    table.add_column("to first new step", min_width=len("new step"))
    table.add_column("steps lost", min_width=len("steps"))
    for record in records:
        took = "-"
        if record.first_step_at_s is not None:
            took = f"{record.first_step_at_s - record.fault_at_s:.2f} s"
        table.add_row(
            str(record.incident),
            "\nthen ".join([record.opened_by.symptom, *record.later_symptoms]),
            ", ".join(record.machines_named) or "-",
            ", ".join(map(_rung, record.climbs)) or "-",
            record.outcome.value,
            took,
            str(record.lost_steps),
        )
    return table


def _rung(climb: Climb) -> str:
    """The rung, and why nothing was done on it, if so."""
    left_out = climb.outcome in (ClimbOutcome.DENIED, ClimbOutcome.OBSERVED)
    return f"{climb.rung.value} ({climb.outcome.value})" if left_out else climb.rung.value


def timeline_table(record: IncidentRecord) -> Table:
    """The story of an incident with seconds since the fault showed itself."""
    table = Table("time (UTC)", "seconds", "what", title=f"Incident {record.incident}")
    for entry in _condensed(sorted(record.timeline, key=lambda entry: entry.at_s)):
        since_s = entry.at_s - record.fault_at_s
        # Not markup: a log's last lines may hold brackets.
        table.add_row(story.clock(entry.at_s), f"{since_s:+.2f}", Text(entry.text))
    return table


def climbs_table(record: IncidentRecord) -> Table:
    """The rungs with what they were chosen for and what they brought."""
    table = Table("rung", "brought", "machines", "pointed at", "because")
    for climb in record.climbs:
        machines, suspects = ", ".join(climb.machines) or "-", ", ".join(climb.suspects) or "-"
        brought = climb.outcome.value.replace("_", " ")
        table.add_row(climb.rung.value, brought, machines, suspects, Text(climb.reason))
    return table


def _condensed(timeline: Sequence[TimelineEntry]) -> Iterator[TimelineEntry]:
    """The timeline with long rows of one observer's alerts cut short."""
    for observer, group in itertools.groupby(timeline, key=_observer):
        entries = list(group)
        if observer is None or len(entries) <= MAX_ALERTS_IN_A_ROW:
            yield from entries
            continue
        yield from entries[: MAX_ALERTS_IN_A_ROW - 1]
        more = len(entries) - MAX_ALERTS_IN_A_ROW + 1
        yield TimelineEntry(entries[-1].at_s, f"{observer}: {more} more like these (all: --json)")


def _observer(entry: TimelineEntry) -> str | None:
    """Who raised the alert that an entry tells of; None for all other entries."""
    name = entry.text.partition(":")[0]
    return name if name in list(Observer) else None
