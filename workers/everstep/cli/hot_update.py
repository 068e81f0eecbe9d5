"""`everstep hot-update` and `everstep updates`: other code and arguments for a job that runs."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Column, Table
from rich.text import Text
from temporalio.client import WorkflowHandle

from everstep.cli.asking import PATIENCE_S, ask, connect
from everstep.cli.console import out
from everstep.cli.find import RunArgument, find_run, of_run, use_server_of
from everstep.cli.person import person
from everstep.core.errors import InputError, PermanentError
from everstep.core.updates import UpdateState, told
from everstep.core.vocabulary import Outcome
from everstep.workers import handles
from everstep.workers.local.code import take_update
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.standing import last_told
from everstep.workflows import story
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import (
    Cancellation,
    JobResult,
    JobStatus,
    UpdateAnswer,
    UpdateRequest,
)

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

T = TypeVar("T")
_Handle = WorkflowHandle[RunJob, JobResult]


def hot_update_command(
    run: RunArgument = None,
    code: Annotated[
        str,
        typer.Option(
            "--code", metavar="DIR|REF", help="Folder of the new code, or a ref of its git."
        ),
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Argument of the command (lr=3e-4), or in capitals a variable (NCCL_DEBUG=INFO).",
        ),
    ] = None,
    urgent: Annotated[
        bool, typer.Option("--urgent", help="Stop training for it now; at most a step is redone.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "",
    window: Annotated[
        str,
        typer.Option("--window", help="When to make it if nothing fails before: 90s, 30m, 24h."),
    ] = "24h",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Change the code or the arguments of a job that runs; joins the next restart, or --urgent.

    Every machine has to say that the code could run before anything stops. Arguments are not tried:
    what the script does not know fails at its start, and is rolled back.
    """
    folder = find_run(run)
    use_server_of(folder)
    window_s = duration_s(window)
    wanted = [parse_setting(text) for text in settings or []]
    if not code and not wanted:
        raise InputError("--code, --set", "nothing would change", "Give one of them.")
    directory = str(take_update(folder, code)) if code else ""
    request = UpdateRequest(person(), directory, tuple(wanted), reason, urgent, window_s=window_s)

    async def send(handle: _Handle) -> tuple[UpdateAnswer, JobStatus]:
        answer = await handle.execute_update(RunJob.hot_update, request)  # pyright: ignore[reportUnknownMemberType]
        return answer, await handle.query(RunJob.status)

    stands = _where_it_stands(folder)
    answer, status = _call(folder, send)
    if answer.update is None:
        raise InputError("--code", "; ".join(answer.refused), "Nothing was stopped. Correct it.")
    if as_json:
        typer.echo(json.dumps(asdict(answer.update), indent=2))
        return
    when = f"it joins the next restart, at the latest in {window}"
    if stands:
        when = stands
    elif urgent:
        when = "training stops for it now; see: everstep status"
    elif status.active_incident is not None:
        # Which may have restarted the job already, and wait for it to prove stable.
        when += f"; incident {status.active_incident} is open, whose next restart it joins"
    out.print(f"{answer.update.text()}: accepted by all machines; {when}")


def _where_it_stands(folder: RunFolder) -> str:
    """What an update comes into where nothing trains that would have to stop for it, or empty."""

    async def look(handle: _Handle) -> str:
        number = (await handle.query(RunJob.status)).active_incident
        if number is None:
            return ""
        client = await connect(PATIENCE_S)
        incident = handles.of_incident(client, folder.job(), number)
        record = await incident.query(ResolveIncident.record)
        if record.first_step_at_s is not None:
            return ""
        makes = f"training stands already; the next restart of incident {number} makes it"
        if record.outcome is Outcome.HELD:
            return f"{makes}, which is held: {of_run(record.missing, folder)}"
        return f"{makes}; see: everstep incident show {number}"

    return _call(folder, look)


def updates_command(
    run: RunArgument = None,
    cancel: Annotated[
        int | None, typer.Option("--cancel", metavar="N", help="Withdraw one that still waits.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the changes of code and arguments, and what became of them; or withdraw one."""
    folder = find_run(run)
    if cancel is not None:
        _cancel(folder, cancel)
        out.print(f"update {cancel} is withdrawn")
        return
    found = _now(folder) if folder.is_running() else _kept(folder)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif found:
        out.print(update_table(found))
    else:
        out.print("no update was asked for")


def _kept(folder: RunFolder) -> list[dict[str, Any]]:
    """The updates of a run that is over, as its job told them last.

    Raises:
        PermanentError: It told nothing.
    """
    found = last_told(folder)
    if "updates" not in found:
        raise PermanentError(
            f"{folder.path}: the run {folder.ending()}, and kept nothing of its updates"
        )
    return list(found["updates"])


def _cancel(folder: RunFolder, number: int) -> None:
    use_server_of(folder)
    wish = Cancellation(number, person())

    async def withdraw(handle: _Handle) -> None:
        await handle.execute_update(RunJob.cancel_update, wish)  # pyright: ignore[reportUnknownMemberType]

    _call(folder, withdraw)


def _now(folder: RunFolder) -> list[dict[str, Any]]:
    """The updates as the job has them."""
    use_server_of(folder)

    async def look(handle: _Handle) -> JobStatus:
        return await handle.query(RunJob.status)

    status = _call(folder, look)
    return told(status.updates, status.codes)


def parse_setting(text: str) -> tuple[str, str]:
    """Name and value of `NAME=VALUE`.

    Raises:
        InputError: It has another form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--set {text}", "is not NAME=VALUE", "Write it like lr=3e-4.")
    return name.removeprefix("--"), value


def duration_s(text: str) -> float:
    """Seconds of `90s`, `30m`, `24h`, `7d`.

    Raises:
        InputError: It has another form, or is not above 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None or float(found[1]) <= 0:
        raise InputError(f"--window {text}", "is no duration", "Write 90s, 30m, 24h or 7d.")
    return float(found[1]) * _UNITS_S[found[2]]


def _call(folder: RunFolder, act: Callable[[_Handle], Awaitable[T]]) -> T:
    async def go() -> T:
        client = await connect(PATIENCE_S)
        return await act(handles.of_job(client, folder.job()))

    return ask(go(), InputError(folder.job(), "it has ended", "Start another: everstep run SPEC."))


def _moment(at_s: float) -> str:
    """A moment that may be days away, in UTC."""
    return f"{story.day(at_s)} {story.clock(at_s)[:8]}"


def update_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """One row an update; of what it changes nothing is cut, however narrow the terminal is."""
    table = Table("#", "asked for", Column("what", overflow="fold"), "why", "outcome")
    for one in found:
        what = [one["version"]] if one["version"] else []
        what += [f"{key}={value}" for key, value in one["settings"]]
        said = one["outcome"]
        if one["state"] == UpdateState.PENDING and one["due_at_s"] > one["at_s"]:
            said += f", {_moment(one['due_at_s'])} at the latest"
        asked = f"{_moment(one['at_s'])} by {one['author']}"
        # Not markup: persons write brackets, too.
        told = (asked, "\n".join(what), one["reason"], said)
        table.add_row(str(one["number"]), *map(Text, told))
    return table
