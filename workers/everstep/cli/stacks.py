"""`everstep stacks`: where all ranks of a running job stand at this moment."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from everstep.activities.evidence import EvidenceStore
from everstep.activities.trace import MANIFEST
from everstep.cli.asking import connect
from everstep.cli.console import complain, out
from everstep.cli.find import RunArgument, find_run, use_server_of
from everstep.cli.stack_view import show_groups
from everstep.core import names
from everstep.core.errors import InputError, TransientError
from everstep.core.orders import TraceOrder
from everstep.core.stacks import summary
from everstep.core.stacks.dump import Snapshot
from everstep.core.stacks.pyspy import Reader
from everstep.spec.load import read_spec
from everstep.workers import handles
from everstep.workers.local.folder import RunFolder
from everstep.workflows.job import RunJob
from everstep.workflows.tracing import Collected, CollectInput, CollectStacks

ANSWER_PATIENCE_S = 10.0
COLLECT_PATIENCE_S = 60.0


def stacks_command(
    run: RunArgument = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write rank-N.json, recorder-N.json there.")
    ] = None,
    deadline_s: Annotated[
        float, typer.Option(min=0.1, max=25.0, help="How long one process may take to answer.")
    ] = 5.0,
    native: Annotated[bool, typer.Option(help="Show frames of C and C++, too.")] = False,
    nonblocking: Annotated[
        bool, typer.Option(help="Do not stop processes while reading; may give torn stacks.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask every rank and its children where they stand; show the ones that stand alike together."""
    folder = find_run(run)
    order = TraceOrder(deadline_s=deadline_s, native=native, nonblocking=nonblocking)
    collected, incident = asyncio.run(_collect(folder, order))
    # The spec's copy lies in the run's folder, apart from the code that it names.
    layout = read_spec(folder.spec).layout()
    dumps: dict[int, bytes] = {}
    recorders: dict[int, bytes] = {}
    for report in collected.reports:
        store = EvidenceStore(report.evidence)
        entries = report.ranks or MANIFEST.validate_json(store.get(report.manifest))
        for rank in entries:
            dumps[rank.rank] = store.get(rank.digest)
            if rank.recorder_digest:
                recorders[rank.rank] = store.get(rank.recorder_digest)
    if save is not None:
        _save(save, "rank", dumps)
        _save(save, "recorder", recorders)
    reader = Reader()
    snapshot = Snapshot({rank: reader.read(dump) for rank, dump in dumps.items()})
    if as_json:
        found = {
            "groups": [asdict(group) for group in summary.groups(snapshot)],
            "silent": [asdict(group) for group in summary.silent(snapshot, layout.world_size)],
            "unheard": dict(collected.unheard),
        }
        typer.echo(json.dumps(found, indent=2))
        return
    show_groups(snapshot, layout.world_size)
    if not summary.groups(snapshot):
        look = "everstep status" if incident is None else f"everstep incident show {incident}"
        out.print(f"No rank runs; see: {look}")
    for machine, reason in collected.unheard:
        complain(f"machine {machine} did not answer: {reason}")
    if save is not None:
        out.print(f"Saved {len(dumps)} dumps: everstep analyze-stacks {save} --spec {folder.spec}")
        out.print(f"Who is stuck and who moves, only another look tells: --save {save}/later")


async def _collect(folder: RunFolder, order: TraceOrder) -> tuple[Collected, int | None]:
    """What ranks answer, and the number of the open incident."""
    use_server_of(folder)
    client = await connect(ANSWER_PATIENCE_S)
    job = folder.job()
    handle = handles.of_job(client, job)
    status = await handle.query(RunJob.status, rpc_timeout=timedelta(seconds=ANSWER_PATIENCE_S))
    if status.assignment is None:
        raise TransientError(f"no ranks of {job} run yet; try again")
    asked = CollectInput(job, tuple(status.assignment.machine_names()), order)
    collected = await client.execute_workflow(
        CollectStacks.run,
        asked,
        id=names.stacks_workflow_id(job, uuid.uuid4().hex),
        task_queue=names.CONTROLLER_QUEUE,
        execution_timeout=timedelta(seconds=COLLECT_PATIENCE_S),
    )
    return collected, status.active_incident


def _save(folder: Path, name: str, dumps: dict[int, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, dump in dumps.items():
            (folder / f"{name}-{rank}.json").write_bytes(dump)
    except OSError as error:
        what = error.strerror or str(error)
        raise InputError(f"--save {folder}", what, "Name a folder that can be written.") from None
