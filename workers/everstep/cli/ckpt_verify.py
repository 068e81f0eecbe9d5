"""What `everstep ckpt verify` finds: everything is read again, and its checksum compared.

A step that training has overwritten before it was read is not known to be whole: a newer one of the
same rank is read instead, as the memory in which it lies is the same.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module

from everstep.agent.snapshots import Snapshot
from everstep.agent.storage_child import FailedError
from everstep.cli.ckpt_sources import child_of, memory_of, stored, work
from everstep.core.errors import EverstepError
from everstep.core.model import MachineInfo
from everstep.core.stored import newest_first
from everstep.core.vocabulary import Verdict
from everstep.spec.job import JobSpec
from everstep.storage.folder import JobFolder
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.memory import Memory

TRIES = 8
"""Of a job with steps of a few milliseconds, most steps are gone before they are asked for."""

CHECKSUMS = "everstep.checkpoint.checksums"
"""Imported by name where it is used: it loads torch, which most commands do without."""

MOVED_ON = "moved on"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of reading one thing.

    Attributes:
        where: A machine, or "storage".
        what: A rank, a checkpoint, or "memory" as a whole.
        step: Its step; empty where none is known.
        result: In words.
        verdict: `unobservable` when it could not be read.
    """

    where: str
    what: str
    step: int | str
    result: str
    verdict: Verdict = Verdict.UNOBSERVABLE


def verify(folder: RunFolder, spec: JobSpec) -> list[Result]:
    """Read everything again that memory and storage hold."""
    found: list[Result] = []
    if folder.is_running():
        found += verify_memory(memory_of(folder, spec))
    return [*found, *_verify_storage(folder, spec)]


def told(results: Sequence[Result]) -> str:
    """How much of it was whole, in a sentence."""
    if not results:
        return "Nothing was there to be verified."
    whole = sum(one.verdict is Verdict.HEALTHY for one in results)
    damaged = sum(one.verdict is Verdict.FAULTY for one in results)
    parts = [f"{whole} of {len(results)} are whole"]
    if damaged:
        parts.append(f"{damaged} damaged")
    if unread := len(results) - whole - damaged:
        moved = any(one.result == MOVED_ON for one in results)
        why = ": training was faster than reading; try again" if moved else ""
        parts.append(f"{unread} could not be verified{why}")
    return f"{', '.join(parts)}."


# --- Memory ---------------------------------------------------------------------------------------


def verify_memory(memory: Memory) -> Iterator[Result]:
    """Read all shards of all machines."""
    # Loads torch, which takes seconds: what is looked at before has moved on by then.
    import_module(CHECKSUMS)
    for seen in memory.look():
        if seen.contents is None:
            yield Result(seen.info.machine, "memory", "", seen.reason)
            continue
        for shard in seen.contents.shards:
            yield verify_shard(memory, seen.info, shard.rank, shard.step)


def verify_shard(memory: Memory, info: MachineInfo, rank: int, step: int) -> Result:
    """Read a rank's shard on a machine: this step, or a newer one when it was overwritten."""
    what = f"rank {rank}"
    for _ in range(TRIES):
        try:
            snapshot = memory.fetch(info, rank, step)
        except EverstepError as error:
            # Training overwrites the older of two steps all the time.
            if "overwritten" not in str(error) and "has no step" not in str(error):
                return Result(info.machine, what, step, str(error))
        else:
            return _compared(snapshot, info.machine, what, step)
        contents = memory.look_at(info).contents
        there = () if contents is None else contents.shards
        step = max((shard.step for shard in there if shard.rank == rank), default=step)
    return Result(info.machine, what, step, MOVED_ON)


def _compared(snapshot: Snapshot, where: str, what: str, step: int) -> Result:
    checksums = import_module(CHECKSUMS)
    memory = memoryview(mmap.mmap(snapshot.fd, snapshot.shard.body_bytes))
    if checksums.checksum(memory) == snapshot.shard.checksum:
        return Result(where, what, step, "whole", Verdict.HEALTHY)
    return Result(where, what, step, "damaged: its checksum is another", Verdict.FAULTY)


# --- Storage --------------------------------------------------------------------------------------


def _verify_storage(folder: RunFolder, spec: JobSpec) -> Iterator[Result]:
    report, storage = stored(spec), spec.checkpoint.storage
    if report is None or storage is None:
        return
    if report.reason:
        yield Result("storage", "", "", report.reason)
        return
    jobs = JobFolder(storage.path, spec.name)
    for one in newest_first(report.checkpoints):
        result, verdict = _read(folder, jobs.checkpoint(one.name).url)
        yield Result("storage", one.name, one.step, result, verdict)


def _read(folder: RunFolder, url: str) -> tuple[str, Verdict]:
    with child_of(folder) as child:
        try:
            work(child, {"do": "check", "url": url, "share": 0, "shares": 1})
        except FailedError as error:
            # What it says of the content; not that it died, or may not read.
            if child.answered and error.number in (None, errno.ENOENT):
                return f"damaged: {error}", Verdict.FAULTY
            return f"could not be read: {error}", Verdict.UNOBSERVABLE
        except EverstepError as error:
            return f"could not be read: {error}", Verdict.UNOBSERVABLE
    return "whole", Verdict.HEALTHY
