"""Machines that send each other shards over loopback, for tests."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable, Generator

from everstep.agent import link
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.sender import BackupSender
from everstep.agent.transfer.server import TransferServer
from everstep.core import wire
from everstep.core.model import MachineInfo
from everstep.core.shard import Origin, Shard, checksum

SECRET = b"a secret of the job"
JOB = "job"
HOST = "127.0.0.1"
ORIGIN = Origin()
PATIENCE_S = 20.0
TENSOR_BYTES = 3 * 2**20 + 17


def content(rank: int, step: int) -> bytes:
    return hashlib.shake_128(f"{rank}, {step}".encode()).digest(64 + TENSOR_BYTES)


@functools.cache
def sum_of(rank: int, step: int) -> int:
    return checksum(memoryview(content(rank, step)))


def shard_of(rank: int, step: int, attempt: int = 1) -> Shard:
    job, layout = ORIGIN.job_print, ORIGIN.layout_print
    return Shard(rank, step, attempt, 30, TENSOR_BYTES, sum_of(rank, step), job, layout)


def save(store: ShardStore, rank: int, step: int, attempt: int = 1) -> Shard:
    """What a rank does: commit a step."""
    shard = shard_of(rank, step, attempt)
    view = store.region_for(rank, shard.body_bytes).view
    newest = view.newest()
    slot = view.slot_to_overwrite(newest[1].step if newest else None)
    view.invalidate(slot)
    view.body(slot)[: shard.body_bytes] = content(rank, step)
    view.commit(slot, shard)
    return shard


def steps(store: ShardStore, rank: int) -> tuple[int, ...]:
    """Steps that are here, whole, and what their rank saved."""
    region = store.region(rank)
    if region is None:
        return ()
    for slot, shard in region.view.committed():
        assert bytes(region.view.body(slot)[: shard.body_bytes]) == content(rank, shard.step)
    return tuple(shard.step for _, shard in region.view.committed())


class Machine:
    def __init__(self, name: str) -> None:
        self.store = ShardStore(name)
        self.server = TransferServer(HOST, self.store, SECRET, JOB)
        self.sender = BackupSender(self.store, SECRET, JOB)

    @property
    def info(self) -> MachineInfo:
        return MachineInfo(self.store.machine, HOST, self.server.port, 0, os.getpid(), 0.0)

    def close(self) -> None:
        self.sender.close()
        self.server.close()


@contextlib.contextmanager
def machine(name: str) -> Generator[Machine]:
    """A machine, until the end."""
    made = Machine(name)
    yield made
    made.close()


@contextlib.contextmanager
def no_thread_left() -> Generator[None]:
    """Whatever has been started has ended soon after."""
    before = set(threading.enumerate())
    yield
    deadline_s = time.monotonic() + PATIENCE_S
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.005)


def send(source: Machine, holder: MachineInfo, rank: int, step: int) -> None:
    source.sender.send(rank, step, holder).result(PATIENCE_S)


def dial(port: int, secret: bytes = SECRET, job: str = JOB) -> link.Link:
    return link.connect(HOST, port, secret, job)


def put_request(shard: Shard) -> wire.Header:
    return {
        "put": {
            "rank": shard.rank,
            "step": shard.step,
            "attempt": shard.attempt,
            "metadata_bytes": shard.metadata_bytes,
            "tensor_bytes": shard.payload_bytes,
            "checksum": shard.checksum,
            "job": shard.job,
            "layout": shard.layout,
        }
    }


def receiving(store: ShardStore, rank: int) -> bool:
    region = store.region(rank)
    return region is not None and region.receiving.locked()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "in vain"
        time.sleep(0.005)
