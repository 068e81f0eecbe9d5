"""`everstep doctor`: what a cluster lacks for jobs to run in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from everstep.cli.console import out
from everstep.core.errors import InputError
from everstep.spec.job import JobSpec
from everstep.spec.load import read_spec
from everstep.workers.cluster import doctor
from everstep.workers.cluster.finding import Finding, State, missing
from everstep.workers.cluster.install import BASE_NAMESPACE, check_namespace
from everstep.workers.cluster.reaching import cluster
from everstep.workers.cluster.temporal_doctor import look_at_temporal

COLOURS = {State.OK: "green", State.MISSING: "red", State.UNCLEAR: "yellow"}


def doctor_command(
    spec_file: Annotated[
        Path | None,
        typer.Argument(metavar="[SPEC]", help="Only what this job needs; else what any may need."),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Where jobs go.")] = BASE_NAMESPACE,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this cluster lacks, and how to mend it; ends with 1 when anything is missing."""
    check_namespace(namespace)
    spec = None if spec_file is None else read_spec(spec_file)
    found = asyncio.run(_look(namespace, spec))
    if json_:
        out.print_json(json.dumps([asdict(one) for one in found]))
    else:
        out.print(_table(found))
    if any(one.state is State.MISSING for one in found):
        raise typer.Exit(1)


async def _look(namespace: str, spec: JobSpec | None) -> list[Finding]:
    try:
        async with cluster() as connection:
            in_cluster = await doctor.look_at_cluster(connection, namespace, spec)
    except InputError as error:
        # What else there is to be seen does not depend on it.
        in_cluster = [missing("API server", f"{error.where}: {error.what}", error.fix)]
    return [*in_cluster, *await look_at_temporal(), doctor.look_at_ptrace()]


def _table(found: Sequence[Finding]) -> Table:
    table = Table(Column("what", no_wrap=True), Column("", no_wrap=True), "seen", "what to do")
    for one in found:
        state = Text(one.state.value, style=COLOURS[one.state])
        table.add_row(one.item, state, Text(one.detail), Text(one.fix))
    return table
