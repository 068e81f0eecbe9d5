"""Where `everstep ckpt` looks: the machines' memory, the storage, and who may read either."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from everstep.agent.storage import TIER_COMMAND
from everstep.agent.storage_child import Child
from everstep.cli.asking import connect
from everstep.cli.find import use_server_of
from everstep.core.errors import EverstepError, TransientError
from everstep.core.model import MachineInfo
from everstep.core.orders import StorageReport
from everstep.spec.job import JobSpec
from everstep.storage.folder import JobFolder
from everstep.workers import handles
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.memory import Memory
from everstep.workflows.job import RunJob

_ANSWER_PATIENCE_S = 5.0
WORK_PATIENCE_S = 24 * 3600.0


def memory_of(folder: RunFolder, spec: JobSpec) -> Memory:
    """The memory of the machines that hold the job's slots now.

    Raises:
        InputError: The run is over.
        TransientError: Its server does not answer.
    """
    use_server_of(folder)

    async def ask() -> list[MachineInfo]:
        client = await connect(_ANSWER_PATIENCE_S)
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


def stored(spec: JobSpec) -> StorageReport | None:
    """What the storage holds, or why nobody can tell; None where the spec names none."""
    storage = spec.checkpoint.storage
    if storage is None:
        return None
    try:
        return JobFolder(storage.path, spec.name).look("here")
    except (OSError, EverstepError) as error:
        return StorageReport("here", (), (), f"{storage.path} cannot be read: {error}")


def work(
    child: Child, order: dict[str, Any], packets: Sequence[tuple[dict[str, Any], int]] = ()
) -> None:
    """Have a process that may load torch carry out an order.

    Raises:
        FailedError: It failed, or the process died.
        TransientError: It was not done in time.
    """
    child.begin()
    child.send(order)
    for content, fd in packets:
        child.send(content, fd)
    if child.result(WORK_PATIENCE_S) is None:
        raise TransientError(f"it was not done within {WORK_PATIENCE_S:.0f} s")


@contextmanager
def child_of(folder: RunFolder) -> Generator[Child]:
    """A process that may load torch; ended in any case."""
    log = folder.logs / "ckpt.log"
    child = Child(TIER_COMMAND, log if os.access(folder.logs, os.W_OK) else Path(os.devnull))
    try:
        yield child
    finally:
        child.close()
