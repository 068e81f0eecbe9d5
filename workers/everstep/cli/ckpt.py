"""`everstep ckpt ...`: what is held of a run's state, in memory and in storage."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from everstep.agent.snapshots import Snapshot
from everstep.agent.storage import TIER_COMMAND
from everstep.agent.storage_child import Child
from everstep.cli.console import out
from everstep.cli.find import RunArgument, find_run, use_server_of
from everstep.core.errors import EverstepError, InputError, PermanentError, TransientError
from everstep.core.model import MachineInfo
from everstep.core.orders import StorageReport, StoredCheckpoint
from everstep.core.stored import newest_first
from everstep.spec.job import JobSpec
from everstep.spec.load import load_spec
from everstep.storage.folder import Checkpoint, JobFolder, copy_checkpoint, is_empty
from everstep.workers import handles, runtime
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.memory import Memory, Seen
from everstep.workflows.job import RunJob

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_ANSWER_PATIENCE_S = 5.0
_WORK_PATIENCE_S = 24 * 3600.0
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
    """Read everything again that memory and storage hold, and compare checksums."""
    folder = find_run(run)
    spec = load_spec(folder.spec)
    results = [*_verify_memory(folder, spec), *_verify_storage(folder, spec)]
    if as_json:
        out.print_json(json.dumps(results))
    else:
        table = Table("where", "what", "step", "result")
        for one in results:
            table.add_row(one["where"], one["what"], str(one["step"]), escape(one["result"]))
        out.print(table)
        if not folder.is_running():
            out.print("The run is over: nothing is in memory any more.")
    if any(one["result"] not in ("whole", "moved on") for one in results):
        raise typer.Exit(1)


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
    _work({"do": "check", "url": checkpoint.url, "share": 0, "shares": 1}, folder)
    copy_checkpoint(checkpoint, dest)
    name = checkpoint.url.rpartition("/")[2]
    out.print(f"{name} was written to {escape(dest)}, from storage ({escape(reason)}).")


def describe(folder: RunFolder) -> dict[str, Any]:
    """Everything that `everstep ckpt ls --json` prints."""
    spec = load_spec(folder.spec)
    report = _stored(spec)
    memory: dict[str, Any] = {"reason": "the run is over: nothing is in memory any more"}
    if folder.is_running():
        seen = _memory(folder, spec).look()
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


# --- Memory ---------------------------------------------------------------------------------------


def _memory(folder: RunFolder, spec: JobSpec) -> Memory:
    use_server_of(folder)

    async def ask() -> list[MachineInfo]:
        client = await runtime.connect(_ANSWER_PATIENCE_S)
        handle = handles.of_job(client, spec.name)
        patience = timedelta(seconds=_ANSWER_PATIENCE_S)
        status = await handle.query(RunJob.status, rpc_timeout=patience)
        return [] if status.assignment is None else list(status.assignment.slots)

    return Memory(
        asyncio.run(ask()),
        folder.secret.read_bytes().strip(),
        spec.name,
        spec.parallelism.text(),
        spec.layout().world_size,
    )


def _verify_memory(folder: RunFolder, spec: JobSpec) -> Iterator[dict[str, Any]]:
    if not folder.is_running():
        return
    memory = _memory(folder, spec)
    for seen in memory.look():
        if seen.contents is None:
            yield _result(seen.info.machine, "memory", "", seen.reason)
            continue
        for shard in seen.contents.shards:
            result = _verify_shard(memory, seen.info, shard.rank, shard.step)
            yield _result(seen.info.machine, f"rank {shard.rank}", shard.step, result)


def _verify_shard(memory: Memory, info: MachineInfo, rank: int, step: int) -> str:
    try:
        snapshot = memory.fetch(info, rank, step)
    except EverstepError as error:
        # Training overwrites the older of two steps all the time.
        return (
            "moved on" if "overwritten" in str(error) or "has no step" in str(error) else str(error)
        )
    return "whole" if _is_whole(snapshot) else "damaged: its checksum is another"


def _is_whole(snapshot: Snapshot) -> bool:
    # Loads torch, which most commands do without.
    checksums = import_module("everstep.checkpoint.checksums")
    memory = memoryview(mmap.mmap(snapshot.fd, snapshot.shard.body_bytes))
    return bool(checksums.checksum(memory) == snapshot.shard.checksum)


def _export_memory(folder: RunFolder, spec: JobSpec, dest: str, step: int | None) -> int:
    snapshots = _memory(folder, spec).fetch_all(step)
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
        "give_up_after_s": _WORK_PATIENCE_S,
        "keep": 0,
        "shards": len(snapshots),
    }
    _work(order, folder, [(asdict(one.shard), one.fd) for one in snapshots])
    return found.step


# --- Storage --------------------------------------------------------------------------------------


def _stored(spec: JobSpec) -> StorageReport | None:
    storage = spec.checkpoint.storage
    if storage is None:
        return None
    try:
        return JobFolder(storage.path, spec.name).look("here")
    except (OSError, EverstepError) as error:
        return StorageReport("here", (), (), f"{storage.path} cannot be read: {error}")


def _verify_storage(folder: RunFolder, spec: JobSpec) -> Iterator[dict[str, Any]]:
    report, storage = _stored(spec), spec.checkpoint.storage
    if report is None or storage is None:
        return
    if report.reason:
        yield _result("storage", "", "", report.reason)
    jobs = JobFolder(storage.path, spec.name)
    for one in newest_first(report.checkpoints):
        url = jobs.checkpoint(one.name).url
        try:
            _work({"do": "check", "url": url, "share": 0, "shares": 1}, folder)
        except EverstepError as error:
            yield _result("storage", one.name, one.step, f"damaged: {error}")
        else:
            yield _result("storage", one.name, one.step, "whole")


def _stored_step(folder: RunFolder, spec: JobSpec, step: int | None, reason: str) -> Checkpoint:
    report, storage = _stored(spec), spec.checkpoint.storage
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


def _result(where: str, what: str, step: int | str, result: str) -> dict[str, Any]:
    return {"where": where, "what": what, "step": step, "result": result}


def _work(
    order: dict[str, Any],
    folder: RunFolder,
    packets: Sequence[tuple[dict[str, Any], int]] = (),
) -> None:
    """Have a process that may load torch carry out an order."""
    with _child(folder) as child:
        child.begin()
        child.send(order)
        for content, fd in packets:
            child.send(content, fd)
        child.result(_WORK_PATIENCE_S)


@contextmanager
def _child(folder: RunFolder) -> Generator[Child]:
    log = folder.logs / "ckpt.log"
    child = Child(TIER_COMMAND, log if os.access(folder.logs, os.W_OK) else Path(os.devnull))
    try:
        yield child
    finally:
        child.close()
