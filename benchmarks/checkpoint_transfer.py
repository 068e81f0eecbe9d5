"""Backups and pulls beside a plain socket copy: 1 GiB over loopback, from process to process.

Both ways copy from one process's shared memory into another's; the plain copy is `sendall` and
`recv_into` with nothing else.
The processes take turns: one transfer each way, then again, so that a noisy machine treats all
alike.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from everstep.agent.shards import ShardStore
from everstep.agent.transfer.asking import pull
from everstep.agent.transfer.sender import BackupSender
from everstep.agent.transfer.server import TransferServer
from everstep.checkpoint.checksums import checksum
from everstep.core.model import MachineInfo
from everstep.core.orders import Pull
from everstep.core.shard import Shard, body_bytes

SIZE_BYTES = 2**30
HOST = "127.0.0.1"
SECRET = b"a secret of the benchmark"
JOB = "benchmark"
RANK = 0
NUM_ROUNDS = 9
CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a way of copying is, in the median round.

    Attributes:
        value: Bytes a second.
        ratio: Over the plain copy of the same round.
    """

    value: float
    ratio: float


def shared_memory() -> memoryview:
    """Memory of the kind that shards lie in, every page of it there."""
    fd = os.memfd_create("plain", os.MFD_CLOEXEC)
    os.posix_fallocate(fd, 0, SIZE_BYTES)
    view = memoryview(mmap.mmap(fd, SIZE_BYTES))
    os.close(fd)
    return view


def serve() -> None:
    """The other process: a plain receiver, and a machine's transfer server."""
    store = ShardStore("far")
    server = TransferServer(HOST, store, SECRET, JOB)
    place = shared_memory()
    with socket.create_server((HOST, 0)) as listener:
        print(listener.getsockname()[1], server.port, flush=True)
        plain, _ = listener.accept()
    with plain:
        while True:
            rest = place
            while rest:
                count = plain.recv_into(rest[:CHUNK_BYTES])
                if count == 0:
                    server.close()
                    return
                rest = rest[count:]
            plain.sendall(b"k")


def commit(store: ShardStore, step: int) -> None:
    """What a rank does, without the copy: the content stays what it is."""
    shard_bytes = body_bytes(64, SIZE_BYTES)
    view = store.region_for(RANK, shard_bytes).view
    newest = view.newest()
    slot = view.slot_to_overwrite(None if newest is None else newest[1].step)
    view.invalidate(slot)
    total = checksum(view.body(slot)[:shard_bytes])
    origin = store.origin
    shard = Shard(RANK, step, 1, 64, SIZE_BYTES, total, origin.job_print, origin.layout_print)
    view.commit(slot, shard)


def timed(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def measure() -> tuple[Rate, Rate, Rate]:
    """A plain copy, a backup and a pull."""
    far = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.checkpoint_transfer", "serve"],
        stdout=subprocess.PIPE,
        text=True,
    )
    if far.stdout is None:
        raise RuntimeError("no output to read")
    plain_port, port = map(int, far.stdout.readline().split())
    store = ShardStore("near")
    sender = BackupSender(store, SECRET, JOB)
    source = shared_memory()
    times: list[tuple[float, float, float]] = []
    with far, contextlib.closing(sender), socket.create_connection((HOST, plain_port)) as plain:

        def copy_plainly() -> None:
            for start in range(0, SIZE_BYTES, CHUNK_BYTES):
                plain.sendall(source[start : start + CHUNK_BYTES])
            plain.recv(1)

        holder = MachineInfo("far", HOST, port, 0, far.pid, 0.0)
        order = Pull(RANK, "far", HOST, port)
        # Only pulls go into this one; it is emptied after each.
        pulled = ShardStore("new")
        for step in range(1, NUM_ROUNDS + 3):
            commit(store, step)
            backup_s = timed(lambda: sender.send(RANK, step, holder).result())  # noqa: B023
            pull_s = timed(lambda: pull(order, step, pulled, SECRET, JOB))  # noqa: B023
            times.append((timed(copy_plainly), backup_s, pull_s))
    # In the first two rounds, both sides touch both slots for the first time.
    return _rate(times[2:], 0), _rate(times[2:], 1), _rate(times[2:], 2)


def _rate(times: list[tuple[float, float, float]], column: int) -> Rate:
    return Rate(
        statistics.median(SIZE_BYTES / each[column] for each in times),
        statistics.median(each[0] / each[column] for each in times),
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        print(*measure(), sep="\n")
