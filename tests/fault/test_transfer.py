"""Shards between machines: broken connections and overwritten memory change nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fault.transferring import (
    HOST,
    JOB,
    PATIENCE_S,
    SECRET,
    TENSOR_BYTES,
    Machine,
    content,
    dial,
    machine,
    no_thread_left,
    put_request,
    receiving,
    save,
    send,
    shard_of,
    steps,
    wait_until,
)

from everstep.agent import link
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.asking import pull
from everstep.agent.transfer.sender import BackupSender
from everstep.agent.transfer.server import TransferServer
from everstep.core.errors import PermanentError, StaleAttempt, TransientError
from everstep.core.faultpoint import Point, hooks
from everstep.core.model import MachineInfo
from everstep.core.orders import Pull
from everstep.core.shard import Origin


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    with no_thread_left():
        yield


@pytest.fixture
def source() -> Iterator[Machine]:
    with machine("m0") as made:
        yield made


@pytest.fixture
def holder() -> Iterator[Machine]:
    with machine("m1") as made:
        yield made


def test_backups_arrive_and_the_last_two_steps_stay(source: Machine, holder: Machine) -> None:
    for step in (1, 2, 3):
        for rank in (4, 5):
            save(source.store, rank, step)
            send(source, holder.info, rank, step)
    assert steps(holder.store, 4) == (2, 3)
    assert steps(holder.store, 5) == (2, 3)
    assert holder.store.copies(verify=True) == source.store.copies(verify=True)


def test_backups_keep_to_their_pace(source: Machine, holder: Machine) -> None:
    save(source.store, 4, 1)
    save(source.store, 5, 1)
    # Six mebibytes and a bit; only the first chunk need not wait.
    paced = BackupSender(source.store, SECRET, JOB, bytes_per_s=10 * 2**20)
    began_s = time.monotonic()
    for future in [paced.send(rank, 1, holder.info) for rank in (4, 5)]:
        future.result(PATIENCE_S)
    assert time.monotonic() - began_s >= 0.55
    paced.close()
    assert steps(holder.store, 4) == steps(holder.store, 5) == (1,)


def test_a_backup_that_is_there_already_counts_as_done(source: Machine, holder: Machine) -> None:
    save(source.store, 4, 1)
    send(source, holder.info, 4, 1)
    again = BackupSender(source.store, SECRET, JOB)
    again.send(4, 1, holder.info).result(PATIENCE_S)
    again.close()
    assert steps(holder.store, 4) == (1,)


def test_a_lost_shard_is_pulled_back(source: Machine, holder: Machine) -> None:
    shard = save(source.store, 4, 7)
    order = Pull(4, "m0", HOST, source.server.port)
    pull(order, 7, holder.store, SECRET, JOB)
    assert steps(holder.store, 4) == (7,)
    region = holder.store.region(4)
    assert region is not None
    assert region.view.newest() == (0, shard)


def damage(store: ShardStore, rank: int, step: int) -> None:
    region = store.region(rank)
    assert region is not None
    found = region.view.find(step)
    assert found is not None
    region.view.body(found[0])[1000] ^= 1


def test_a_damaged_copy_is_dropped_and_pulled_again(source: Machine, holder: Machine) -> None:
    for step in (6, 7):
        save(source.store, 4, step)
        save(holder.store, 4, step)
    damage(holder.store, 4, 6)
    assert holder.store.drop_damaged(4, 6)
    assert not holder.store.drop_damaged(4, 7)
    assert not holder.store.drop_damaged(4, 6)
    assert not holder.store.drop_damaged(9, 6)
    assert steps(holder.store, 4) == (7,)
    pull(Pull(4, "m0", HOST, source.server.port), 6, holder.store, SECRET, JOB)
    # What came after it is of a past that is over.
    assert steps(holder.store, 4) == (6,)


def test_a_pull_of_what_is_here_asks_nobody(holder: Machine) -> None:
    save(holder.store, 4, 7)
    pull(Pull(4, "m0", HOST, 1), 7, holder.store, SECRET, JOB)
    assert steps(holder.store, 4) == (7,)


def test_a_pull_of_a_step_that_is_not_there_says_so(source: Machine, holder: Machine) -> None:
    save(source.store, 4, 7)
    with pytest.raises(PermanentError, match="machine m0 has no step 8 of rank 4"):
        pull(Pull(4, "m0", HOST, source.server.port), 8, holder.store, SECRET, JOB)


def test_a_doubted_copy_is_dropped_only_if_it_is_damaged(source: Machine, holder: Machine) -> None:
    for step in (6, 7):
        save(holder.store, 4, step)
    damage(holder.store, 4, 7)
    for step in (6, 7, 8):
        source.sender.doubt(4, step, holder.info)
    assert steps(holder.store, 4) == (6,)
    assert holder.store.copies() == holder.store.copies(verify=True)


@pytest.fixture
def at() -> Iterator[Callable[[Point, Callable[[], object]], None]]:
    """Makes something happen when this process first comes to a point."""

    def at(point: Point, act: Callable[[], object]) -> None:
        def hook(reached: Point) -> None:
            if reached == point:
                hooks.remove(hook)
                act()

        hooks.append(hook)

    yield at
    hooks.clear()


At = Callable[[Point, Callable[[], object]], None]


@pytest.mark.parametrize("num_saves", [1, 2])
def test_a_shard_that_is_overwritten_while_it_is_sent_is_not_taken(
    source: Machine, holder: Machine, at: At, num_saves: int
) -> None:
    for step in (1, 2):
        save(source.store, 4, step)
        send(source, holder.info, 4, step)
    save(source.store, 4, 3)

    def overwrite() -> None:
        # Committed or only begun, as the second one is, it is not step 3 any more.
        save(source.store, 4, 4)
        region = source.store.region(4)
        assert region is not None
        region.view.invalidate(region.view.slot_to_overwrite(4))
        if num_saves == 2:
            save(source.store, 4, 5)

    at("mid_send", overwrite)
    with pytest.raises(PermanentError, match="step 3 of rank 4 was overwritten meanwhile"):
        send(source, holder.info, 4, 3)
    assert steps(holder.store, 4) == (2,)
    send(source, holder.info, 4, 4)
    assert steps(holder.store, 4) == (2, 4)


def test_a_shard_that_is_overwritten_while_it_is_pulled_is_not_taken(
    source: Machine, holder: Machine, at: At
) -> None:
    save(source.store, 4, 1)

    def overwrite() -> None:
        for step in (2, 3):
            save(source.store, 4, step)

    at("mid_send", overwrite)
    with pytest.raises(PermanentError, match="step 1 of rank 4 was overwritten meanwhile"):
        pull(Pull(4, "m0", HOST, source.server.port), 1, holder.store, SECRET, JOB)
    assert steps(holder.store, 4) == ()


def test_shards_of_another_layout_are_refused_on_both_ways(source: Machine) -> None:
    save(source.store, 4, 7)
    store = ShardStore("m1", origin=Origin(layout="tp=2"))
    server = TransferServer(HOST, store, SECRET, JOB)
    with pytest.raises(PermanentError, match="rank 4's step 7 was saved in another layout"):
        send(source, MachineInfo("m1", HOST, server.port, 0, 1, 0.0), 4, 7)
    with pytest.raises(PermanentError, match="rank 4's step 7 was saved in another layout"):
        pull(Pull(4, "m0", HOST, source.server.port), 7, store, SECRET, JOB)
    # Nothing is wrong with it where it is.
    assert steps(source.store, 4) == (7,)
    assert store.copies() == ()
    server.close()


def test_a_pull_from_nobody_is_transient(holder: Machine) -> None:
    with socket.create_server((HOST, 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(TransientError, match="cannot reach"):
        pull(Pull(4, "m0", HOST, port), 7, holder.store, SECRET, JOB)


def test_what_a_sender_takes_back_leaves_the_older_step(holder: Machine) -> None:
    save(holder.store, 4, 1)
    with contextlib.closing(dial(holder.server.port)) as peer:
        peer.send(put_request(shard_of(4, 2)))
        assert peer.receive() == {"go": True}
        peer.send_payload(memoryview(content(4, 3)))
        peer.send({"refused": "it was overwritten meanwhile"})
        assert "overwritten" in peer.receive()["refused"]
        assert steps(holder.store, 4) == (1,)
        # The connection goes on.
        peer.send(put_request(shard_of(4, 2)))
        assert peer.receive() == {"go": True}
        peer.send_payload(memoryview(content(4, 2)))
        peer.send({"whole": True})
        assert peer.receive() == {"ok": True}
    assert steps(holder.store, 4) == (1, 2)


@pytest.mark.parametrize("sent_bytes", [0, 1, 64, 2**20, TENSOR_BYTES + 63])
def test_a_connection_cut_in_the_middle_leaves_the_older_step(
    holder: Machine, sent_bytes: int
) -> None:
    save(holder.store, 4, 1)
    save(holder.store, 4, 2)
    peer = dial(holder.server.port)
    peer.send(put_request(shard_of(4, 3)))
    assert peer.receive() == {"go": True}
    peer.send_payload(memoryview(content(4, 3))[:sent_bytes])
    peer.close()
    wait_until(lambda: not receiving(holder.store, 4))
    assert steps(holder.store, 4) == (2,)


def test_the_sender_connects_anew_when_its_connection_died(
    source: Machine, holder: Machine
) -> None:
    save(source.store, 4, 1)
    send(source, holder.info, 4, 1)
    port = holder.server.port
    holder.server.close()
    # An agent that was started anew on the same port, with its memory empty.
    reborn = ShardStore("m1")
    with socket.create_server((HOST, port)) as listener:
        save(source.store, 4, 2)
        future = source.sender.send(4, 2, MachineInfo("m1", HOST, port, 0, os.getpid(), 0.0))
        sock, _ = listener.accept()
        peer = link.accept(sock, "m0", SECRET, JOB)
        shard = shard_of(4, 2)
        assert peer.receive() == put_request(shard)
        peer.send({"go": True})

        def fill(body: memoryview) -> None:
            place = body
            while place:
                place = place[peer.receive_some(place) :]
            assert peer.receive() == {"whole": True}

        reborn.take_in(shard, fill)
        peer.send({"ok": True})
        future.result(PATIENCE_S)
        peer.close()
    assert steps(reborn, 4) == (2,)


def test_a_holder_that_is_gone_fails_at_once(source: Machine) -> None:
    with socket.create_server((HOST, 0)) as nobody:
        port = nobody.getsockname()[1]
    save(source.store, 4, 1)
    with pytest.raises(TransientError, match="cannot reach"):
        send(source, MachineInfo("m1", HOST, port, 0, 1, 0.0), 4, 1)


def test_a_later_step_overtakes_one_that_waits(source: Machine) -> None:
    with socket.create_server((HOST, 0)) as frozen:
        holder = MachineInfo("m1", HOST, frozen.getsockname()[1], 0, 1, 0.0)
        save(source.store, 3, 1)
        save(source.store, 4, 1)
        busy = source.sender.send(3, 1, holder)
        mute, _ = frozen.accept()
        first = source.sender.send(4, 1, holder)
        save(source.store, 4, 2)
        second = source.sender.send(4, 2, holder)
        with pytest.raises(TransientError, match="overtaken by step 2"):
            first.result(0)
        mute.close()
        with pytest.raises(TransientError, match="no handshake"):
            busy.result(PATIENCE_S)
    with pytest.raises(TransientError):
        second.result(PATIENCE_S)


def test_a_step_that_is_no_longer_in_memory_is_not_sent(source: Machine, holder: Machine) -> None:
    for step in (1, 2, 3):
        save(source.store, 4, step)
    with pytest.raises(PermanentError, match="step 1 of rank 4 is no longer in memory"):
        send(source, holder.info, 4, 1)


def test_shards_of_an_attempt_that_is_over_are_refused(source: Machine, holder: Machine) -> None:
    save(source.store, 4, 1)
    holder.store.advance(2)
    holder.store.advance(1)
    with pytest.raises(PermanentError, match="attempt 2 owns this machine"):
        send(source, holder.info, 4, 1)
    assert steps(holder.store, 4) == ()


def test_an_attempt_that_ends_during_a_transfer_refuses_it(holder: Machine) -> None:
    save(holder.store, 4, 1)

    def fill(body: memoryview) -> None:
        body[:] = content(4, 2)
        holder.store.advance(2)

    with pytest.raises(StaleAttempt):
        holder.store.take_in(shard_of(4, 2), fill)
    assert steps(holder.store, 4) == (1,)


def test_a_transfer_that_an_order_overtook_pushes_nothing_out(holder: Machine) -> None:
    save(holder.store, 4, 1)
    region = holder.store.region_for(4, shard_of(4, 2).body_bytes)
    save(holder.store, 4, 2)
    outcome: list[BaseException] = []

    def put() -> None:
        try:
            holder.store.take_in(shard_of(4, 3), lambda _: None)
        except StaleAttempt as error:
            outcome.append(error)

    # Held up between its admission and its first byte.
    with region.receiving:
        thread = threading.Thread(target=put)
        thread.start()
        holder.store.advance(2)
        copies = holder.store.copies()
    thread.join()
    assert len(outcome) == 1
    assert holder.store.copies(verify=True) == copies
    assert steps(holder.store, 4) == (1, 2)


def test_older_steps_never_replace_newer_ones(source: Machine, holder: Machine) -> None:
    save(holder.store, 4, 5)
    save(source.store, 4, 3)
    with pytest.raises(PermanentError, match="step 3 is not newer than step 5"):
        send(source, holder.info, 4, 3)
    # A newer attempt that restarted earlier writes the past anew.
    save(source.store, 4, 4, attempt=2)
    send(source, holder.info, 4, 4)
    assert steps(holder.store, 4) == (4,)


def test_a_rank_that_runs_here_is_not_overwritten_from_outside(
    source: Machine, holder: Machine
) -> None:
    holder.store.keep_only([4], [])
    save(source.store, 4, 1)
    with pytest.raises(PermanentError, match="machine m1: rank 4 runs here"):
        send(source, holder.info, 4, 1)


def test_a_holder_without_memory_says_so(source: Machine) -> None:
    store = ShardStore("m1", available_bytes=lambda: 1000)
    server = TransferServer(HOST, store, SECRET, JOB)
    save(source.store, 4, 1)
    with pytest.raises(PermanentError, match="machine m1: no memory for rank 4's shard"):
        send(source, MachineInfo("m1", HOST, server.port, 0, 1, 0.0), 4, 1)
    server.close()


HOLDER = """
import sys, threading
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.server import TransferServer
server = TransferServer("127.0.0.1", ShardStore("m1"), b"a secret of the job", "job")
print(server.port, flush=True)
sys.stdin.read()
"""


def stopped(pid: int) -> bool:
    """Whether every thread of it is: a signal takes its time to reach those that run."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_a_holder_killed_during_a_put_costs_nothing_here(source: Machine) -> None:
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env={**os.environ, "PYTHONPATH": f"{root}/core:{root}/agent"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        holder = MachineInfo("m1", HOST, port, 0, process.pid, 0.0)
        save(source.store, 4, 1)
        send(source, holder, 4, 1)
        # Stopped, it takes what fits into the socket's buffers and then nothing.
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: stopped(process.pid))
        save(source.store, 4, 2)
        future = source.sender.send(4, 2, holder)
        with pytest.raises(TimeoutError):
            future.result(0.1)
        process.kill()
        with pytest.raises(TransientError):
            future.result(PATIENCE_S)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stdin.close()
        process.stdout.close()
    assert steps(source.store, 4) == (1, 2)
