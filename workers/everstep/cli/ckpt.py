"""`everstep ckpt ...`: what is held of a run's state, in memory and in storage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from everstep.cli.ckpt_sources import WORK_PATIENCE_S, child_of, memory_of, stored, work
from everstep.cli.ckpt_verify import told, verify
from everstep.cli.console import err, out
from everstep.cli.find import RunArgument, find_run
from everstep.core.errors import InputError, PermanentError, TransientError
from everstep.core.orders import StoredCheckpoint
from everstep.core.senses.inspection import exit_code
from everstep.core.stored import newest_first
from everstep.spec.job import JobSpec
from everstep.spec.load import load_spec
from everstep.storage.folder import Checkpoint, JobFolder, copy_checkpoint, is_empty
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.memory import Seen

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_MIB = 2**20


@app.callback()
def _group() -> None:
    """Look at what is held of a run's state, check it, or take it out."""


@app.command("ls")
def ls_command(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """List the steps that memory and storage hold."""
    folder = find_run(run)
    found = describe(folder)
    if as_json:
        out.print_json(json.dumps(found))
        return
    _print_memory(found["memory"])
    _print_storage(found["storage"])


@app.command("verify")
def verify_command(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Read everything again that memory and storage hold, and compare checksums.

    Ends with 1 when something is damaged, with 3 when nothing is and something could not be read.
    """
    folder = find_run(run)
    results = verify(folder, load_spec(folder.spec))
    if as_json:
        out.print_json(json.dumps([asdict(one) for one in results]))
    elif results:
        table = Table("where", "what", "step", "result")
        for one in results:
            table.add_row(one.where, one.what, str(one.step), escape(one.result))
        out.print(table)
    shown = err if as_json else out
    if not folder.is_running():
        shown.print("The run is over: nothing is in memory any more.")
    shown.print(told(results))
    raise typer.Exit(exit_code(results))


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A new or empty folder, or a URL.")],
    step: Annotated[int | None, typer.Option(help="Which step, if not the newest.")] = None,
) -> None:
    """Write a step as a torch.distributed.checkpoint: of memory if it has it, else of storage."""
    folder = find_run(run)
    spec = load_spec(folder.spec)
    dest = dest if "://" in dest else str(Path(dest).absolute())
    if not is_empty(dest):
        raise InputError(dest, "is not empty", "Name a new folder.")
    reason = "the run is over, so nothing is in memory"
    if folder.is_running():
        try:
            written = _export_memory(folder, spec, dest, step)
        except TransientError as error:
            reason = str(error)
        else:
            out.print(f"Step {written} was written to {escape(dest)}, from memory.")
            return
    checkpoint = _stored_step(folder, spec, step, reason)
    with child_of(folder) as child:
        work(child, {"do": "check", "url": checkpoint.url, "share": 0, "shares": 1})
    copy_checkpoint(checkpoint, dest)
    name = checkpoint.url.rpartition("/")[2]
    out.print(f"{name} was written to {escape(dest)}, from storage ({escape(reason)}).")


def describe(folder: RunFolder) -> dict[str, Any]:
    """Everything that `everstep ckpt ls --json` prints."""
    spec = load_spec(folder.spec)
    report = stored(spec)
    memory: dict[str, Any] = {"reason": "the run is over: nothing is in memory any more"}
    if folder.is_running():
        seen = memory_of(folder, spec).look()
        memory = {"reason": "", "machines": [_show_seen(one) for one in seen]}
    storage: dict[str, Any] = {"reason": "the spec has no checkpoint.storage", "checkpoints": []}
    if report is not None:
        storage = {
            "reason": report.reason,
            "checkpoints": [asdict(one) for one in newest_first(report.checkpoints)],
            "unusable": [{"name": name, "reason": why} for name, why in report.unusable],
        }
    return {"job": spec.name, "memory": memory, "storage": storage}


def _show_seen(seen: Seen) -> dict[str, Any]:
    shards: list[dict[str, Any]] = []
    if seen.contents is not None:
        shards = [
            {
                "rank": shard.rank,
                "step": shard.step,
                "attempt": shard.attempt,
                "bytes": shard.body_bytes,
                "kind": "own" if shard.rank in seen.contents.own else "backup",
                "part_bytes": shard.part_bytes,
                "in_parts": bool(shard.part_whole),
            }
            for shard in seen.contents.shards
        ]
    return {"machine": seen.info.machine, "reason": seen.reason, "shards": shards}


def _print_memory(memory: dict[str, Any]) -> None:
    if memory["reason"]:
        out.print(f"memory: {memory['reason']}")
        return
    table = Table("machine", "kind", "ranks", "steps", "MiB", "parts, MiB", title="memory")
    for machine in memory["machines"]:
        if machine["reason"]:
            table.add_row(machine["machine"], escape(machine["reason"]), "", "", "", "")
        for kind in ("own", "backup"):
            shards = [shard for shard in machine["shards"] if shard["kind"] == kind]
            if shards:
                ranks = sorted({shard["rank"] for shard in shards})
                steps = sorted({shard["step"] for shard in shards})
                size = sum(shard["bytes"] for shard in shards) / _MIB
                in_parts = any(shard["in_parts"] for shard in shards)
                parts = sum(shard["part_bytes"] for shard in shards) / _MIB
                table.add_row(
                    machine["machine"],
                    kind,
                    _span(ranks),
                    ", ".join(map(str, steps)),
                    f"{size:.1f}",
                    f"{parts:.1f}" if in_parts else "-",
                )
    out.print(table)


def _print_storage(storage: dict[str, Any]) -> None:
    if storage["reason"]:
        out.print(f"storage: {escape(storage['reason'])}")
        return
    table = Table("step", "saved (UTC)", "MiB", "layout", "complete", title="storage")
    for one in storage["checkpoints"]:
        saved = f"{datetime.fromtimestamp(one['saved_at_s'], UTC):%Y-%m-%d %H:%M:%S}"
        size = f"{one['size_bytes'] / _MIB:.1f}"
        table.add_row(str(one["step"]), saved, size, one["layout"], "yes")
    for one in storage["unusable"]:
        table.add_row(one["name"], "", "", "", escape(f"no: {one['reason']}"))
    out.print(table)


def _span(ranks: Sequence[int]) -> str:
    whole = list(ranks) == list(range(ranks[0], ranks[-1] + 1))
    if whole and len(ranks) > 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def _export_memory(folder: RunFolder, spec: JobSpec, dest: str, step: int | None) -> int:
    snapshots = memory_of(folder, spec).fetch_all(step)
    found = snapshots[0].shard
    order = {
        "do": "save",
        "folder": dest,
        "url": dest,
        "job": spec.name,
        "run": "export",
        "attempt": found.attempt,
        "step": found.step,
        "parallelism": spec.parallelism.text(),
        "gpus_per_machine": spec.gpus_per_machine,
        "slot": 0,
        "num_slots": 1,
        "ranks_per_slot": len(snapshots),
        "give_up_after_s": WORK_PATIENCE_S,
        "keep": 0,
        "shards": len(snapshots),
    }
    with child_of(folder) as child:
        work(child, order, [(asdict(one.shard), one.fd) for one in snapshots])
    return found.step


def _stored_step(folder: RunFolder, spec: JobSpec, step: int | None, reason: str) -> Checkpoint:
    report, storage = stored(spec), spec.checkpoint.storage
    if report is None or storage is None:
        raise PermanentError(f"{folder.path}: {reason}, and the spec has no checkpoint.storage")
    wanted: list[StoredCheckpoint] = [
        one for one in newest_first(report.checkpoints) if step in (None, one.step)
    ]
    if not wanted:
        which = "no complete checkpoint" if step is None else f"no complete step {step}"
        also = f" ({report.reason})" if report.reason else ""
        raise PermanentError(f"{folder.path}: {reason}, and {storage.path} holds {which}{also}")
    return JobFolder(storage.path, spec.name).checkpoint(wanted[0].name)
