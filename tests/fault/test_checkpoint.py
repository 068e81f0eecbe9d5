"""Checkpoints of real processes that are killed at any moment: what is left is whole."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fault import saver

from everstep import checkpoint
from everstep.agent.channel import RankChannel
from everstep.agent.rank_voice import Word
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.sender import BackupSender
from everstep.agent.transfer.server import TransferServer
from everstep.checkpoint import rebuilding
from everstep.core import names
from everstep.core.channel import Report
from everstep.core.errors import PermanentError
from everstep.core.model import MachineInfo
from everstep.core.shard import aligned

SECRET = b"a secret of the job"
JOB = "job"
PATIENCE_S = 30.0


class Machine:
    """One machine's checkpoint side, over loopback."""

    def __init__(self, name: str) -> None:
        self.store = ShardStore(name)
        self.server = TransferServer("127.0.0.1", self.store, SECRET, JOB)
        self.sender = BackupSender(self.store, SECRET, JOB)
        self.info = MachineInfo(name, "127.0.0.1", self.server.port, 0, os.getpid(), 0.0)

    def close(self) -> None:
        self.sender.close()
        self.server.close()


class Progress:
    """The newest step that was seen, for a test to wait on."""

    def __init__(self) -> None:
        self.step = -1
        self._news = threading.Condition()

    def __call__(self, rank: int, step: int) -> None:
        with self._news:
            self.step = step
            self._news.notify_all()

    def wait_for(self, step: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.step >= step, PATIENCE_S), f"at {self.step}"


@pytest.fixture
def here() -> Iterator[Machine]:
    machine = Machine("m0")
    yield machine
    machine.close()


@pytest.fixture
def peer() -> Iterator[Machine]:
    machine = Machine("m1")
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def ranks() -> Iterator[socket.socket]:
    """The control socket of a process that forks ranks (`saver`)."""
    ours, theirs = socket.socketpair()
    root = Path(__file__).resolve().parents[2]
    roots = ":".join(str(root / name) for name in ("core", "."))
    process = subprocess.Popen(
        [sys.executable, str(root / "tests/fault/saver.py")],
        env={**os.environ, "CONTROL_FD": str(theirs.fileno()), "PYTHONPATH": roots},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,
    )
    theirs.close()
    ours.settimeout(PATIENCE_S)
    yield ours
    ours.close()
    assert process.wait(PATIENCE_S) == 0
    assert process.stdin is not None
    process.stdin.close()


def line(control: socket.socket) -> int:
    text = b""
    while not text.endswith(b"\n"):
        data = control.recv(1)
        assert data, "the forking process died"
        text += data
    return int(text)


@contextlib.contextmanager
def channel_of(
    here: Machine,
    holder: Machine | None = None,
    restore_step: int = 0,
    progress: Callable[[int, int], None] = lambda rank, step: None,
    attempt: int = 1,
    backup_timeout_s: float = PATIENCE_S,
    damages: list[str] | None = None,
) -> Generator[tuple[RankChannel, socket.socket]]:
    ours, theirs = socket.socketpair()
    info = None if holder is None else holder.info

    def on_word(rank: int, word: Word) -> None:
        if isinstance(word, Report):
            progress(rank, word.step)

    def see_damage(rank: int, step: int, text: str) -> None:
        if damages is not None:
            damages.append(text)

    channel = RankChannel(
        0, attempt, ours, here.store, here.sender, info, restore_step, progress, backup_timeout_s,
        see_damage, on_word,
    )  # fmt: skip
    channel.start()
    with theirs:
        yield channel, theirs
    channel.close()


def start(control: socket.socket, theirs: socket.socket, order: bytes) -> int:
    """Fork a rank that owns that end of a channel; its pid."""
    socket.send_fds(control, [order], [theirs.fileno()])
    theirs.close()
    return line(control)


def kill(control: socket.socket, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert line(control) == -signal.SIGKILL, "the rank had ended by itself"


def state_in(store: ShardStore, step: int) -> Any:
    region = store.region(0)
    assert region is not None
    found = region.view.find(step)
    assert found is not None
    slot, shard = found
    body = region.view.body(slot)
    payload = body[aligned(shard.metadata_bytes) : shard.body_bytes]
    return rebuilding.rebuild(bytes(body[: shard.metadata_bytes]), payload)


def assert_whole(store: ShardStore) -> tuple[int, ...]:
    """Every step on offer is intact and what it says; returns the steps."""
    copies = store.copies()
    assert copies == store.copies(verify=True)
    steps = copies[0].steps if copies else ()
    for step in steps:
        assert saver.same(saver.state_of(step), state_in(store, step))
    return steps


def test_a_new_process_restores_what_a_killed_one_saved(
    here: Machine, peer: Machine, ranks: socket.socket
) -> None:
    progress = Progress()
    with channel_of(here, peer, progress=progress) as (channel, theirs):
        pid = start(ranks, theirs, b"3")
        progress.wait_for(3)
        wait_until(lambda: channel.protected_step == 3)
        kill(ranks, pid)
    assert assert_whole(here.store) == (2, 3)
    assert assert_whole(peer.store) == (2, 3)
    here.store.discard_after(2)
    # The rank itself compares what it restores with what step 2 must be.
    with channel_of(here, peer, 2, progress, attempt=2) as (_, theirs):
        pid = start(ranks, theirs, b"3")
        progress.wait_for(5)
        kill(ranks, pid)
    assert assert_whole(here.store) == (4, 5)


def test_a_kill_at_any_moment_of_a_save_leaves_whole_steps(
    here: Machine, peer: Machine, ranks: socket.socket
) -> None:
    seed = 20260
    dice = random.Random(seed)  # noqa: S311 - must repeat
    restore_step = 0
    torn_slots = 0
    for attempt in range(1, 41):
        progress = Progress()
        with channel_of(here, peer, restore_step, progress, attempt) as (_, theirs):
            pid = start(ranks, theirs, b"r")
            progress.wait_for(restore_step + 1)
            time.sleep(dice.uniform(0.0, 0.02))
            kill(ranks, pid)
            saved = progress.step
        text = f"seed {seed}, attempt {attempt}"
        steps = assert_whole(here.store)
        held = assert_whole(peer.store)
        assert saved in steps, text
        assert held, text
        # A save returns when the holder has the step, so it lags by one save at most.
        assert saved - held[-1] <= 1, text
        torn_slots += len(steps) < 2
        restore_step = max(set(steps) & set(held))
        here.store.discard_after(restore_step)
        peer.store.discard_after(restore_step)
    # Else the kills never hit what this test is about.
    assert torn_slots > 0, f"seed {seed}"


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[[socket.socket], checkpoint.Session]:
    def connect(theirs: socket.socket) -> checkpoint.Session:
        monkeypatch.setenv(names.ENV_CHANNEL_FD, str(theirs.detach()))
        return checkpoint.connect()

    return connect


Connect = Callable[[socket.socket], checkpoint.Session]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "in vain"
        time.sleep(0.002)


def test_without_an_agent_nothing_is_restored_or_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(names.ENV_CHANNEL_FD, raising=False)
    session = checkpoint.connect()
    session.save(1, {"x": 1})
    assert session.restore() is None
    session.report(2)
    session.close()


def test_a_channel_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_CHANNEL_FD, "987")
    with pytest.raises(PermanentError, match="EVERSTEP_CHANNEL_FD=987"):
        checkpoint.connect()


def test_a_save_without_a_holder_returns_without_a_warning(
    here: Machine, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    progress = Progress()
    with channel_of(here, progress=progress) as (channel, theirs):
        session = connect(theirs)
        assert session.restore() is None
        session.save(0, {"x": torch.ones(3)})
        session.save(4, {"x": torch.zeros(3)})
        assert progress.step == 4
        session.report(5)
        progress.wait_for(5)
        assert not channel.unprotected_reason
        session.close()
    assert [copy.steps for copy in here.store.copies(verify=True)] == [(0, 4)]
    assert not caplog.records


def test_steps_must_rise(here: Machine, connect: Connect) -> None:
    with channel_of(here) as (_, theirs):
        session = connect(theirs)
        session.save(2, {})
        with pytest.raises(ValueError, match="step 2 is saved after step 2"):
            session.save(2, {})
        session.close()


def test_a_state_that_grows_keeps_the_step_before(here: Machine, connect: Connect) -> None:
    with channel_of(here) as (_, theirs):
        session = connect(theirs)
        session.save(1, {"x": torch.ones(10)})
        before = here.store.region(0)
        session.save(2, {"x": torch.ones(10), "y": torch.ones(10_000_000)})
        assert here.store.region(0) is not before
        session.close()
    assert [copy.steps for copy in here.store.copies(verify=True)] == [(1, 2)]


def test_what_cannot_be_stored_leaves_the_last_step_good(here: Machine, connect: Connect) -> None:
    with channel_of(here) as (_, theirs):
        session = connect(theirs)
        session.save(1, {"x": 1})
        with pytest.raises(TypeError, match=r"state\['x'\]"):
            session.save(2, {"x": object()})
        session.save(2, {"x": 2})
        session.close()
    assert [copy.steps for copy in here.store.copies(verify=True)] == [(1, 2)]


def test_later_steps_of_an_older_attempt_do_not_survive_a_save(
    here: Machine, connect: Connect
) -> None:
    with channel_of(here) as (_, theirs):
        session = connect(theirs)
        session.save(8, {"x": 8})
        session.save(9, {"x": 9})
        session.close()
    with channel_of(here, attempt=2) as (_, theirs):
        session = connect(theirs)
        session.save(1, {"x": 1})
        session.close()
    assert [copy.steps for copy in here.store.copies(verify=True)] == [(1,)]


def saved_on_both(here: Machine, peer: Machine, connect: Connect) -> None:
    with channel_of(here, peer) as (_, theirs):
        session = connect(theirs)
        for step in (1, 2):
            session.save(step, {"x": torch.full((100,), step)})
        session.close()


def test_a_damaged_state_is_restored_from_its_backup(
    here: Machine, peer: Machine, connect: Connect
) -> None:
    saved_on_both(here, peer, connect)
    flip_a_bit(here.store, 2)
    damages: list[str] = []
    with channel_of(here, peer, restore_step=2, attempt=2, damages=damages) as (_, theirs):
        session = connect(theirs)
        restored = session.restore()
        assert restored is not None
        assert torch.equal(restored.state["x"], torch.full((100,), 2))
        session.save(3, {"x": 3})
        session.close()
    assert damages == ["machine m0's step 2 of rank 0 is damaged: fetched from machine m1"]
    assert [copy.steps for copy in here.store.copies(verify=True)] == [(2, 3)]


def test_a_step_that_is_damaged_everywhere_is_never_offered_again(
    here: Machine, peer: Machine, connect: Connect
) -> None:
    saved_on_both(here, peer, connect)
    flip_a_bit(here.store, 2)
    flip_a_bit(peer.store, 2)
    damages: list[str] = []
    with channel_of(here, peer, restore_step=2, attempt=2, damages=damages) as (_, theirs):
        session = connect(theirs)
        with pytest.raises(
            PermanentError, match=r"m0's step 2 .*is damaged, and its backup: .*on machine m1 too"
        ):
            session.restore()
        session.close()
    damaged = "machine m0's step 2 of rank 0 is damaged"
    assert damages == [
        f"{damaged}: fetched from machine m1",
        f"{damaged}, and its backup: it is damaged on machine m1 too",
    ]
    # What the next restart is planned with: the step before, good on both.
    assert [copy.steps for copy in here.store.copies()] == [(1,)]
    assert [copy.steps for copy in peer.store.copies()] == [(1,)]
    with channel_of(here, peer, restore_step=1, attempt=3) as (_, theirs):
        session = connect(theirs)
        restored = session.restore()
        assert restored is not None
        assert torch.equal(restored.state["x"], torch.full((100,), 1))
        session.close()


def test_a_damaged_state_is_not_restored(here: Machine, connect: Connect) -> None:
    with channel_of(here) as (_, theirs):
        session = connect(theirs)
        session.save(1, {"x": torch.ones(100)})
        session.close()
    flip_a_bit(here.store, 1)
    with channel_of(here, restore_step=1, attempt=2) as (_, theirs):
        session = connect(theirs)
        with pytest.raises(
            PermanentError, match="m0's step 1 of rank 0 is damaged, and it has no backup"
        ):
            session.restore()
        session.close()


def test_a_restored_state_is_a_copy(here: Machine, connect: Connect) -> None:
    with channel_of(here) as (_, theirs):
        session = connect(theirs)
        session.save(1, {"x": torch.ones(100), "n": 0.1})
        session.close()
    with channel_of(here, restore_step=1, attempt=2) as (_, theirs):
        session = connect(theirs)
        restored = session.restore()
        assert restored is not None
        assert restored.step == 1
        for step in (2, 3):
            session.save(step, {"x": torch.zeros(100), "n": 0.2})
        assert torch.equal(restored.state["x"], torch.ones(100))
        assert restored.state["n"] == 0.1
        with pytest.raises(ValueError, match="step 1 is saved after step 3"):
            session.save(1, {})
        session.close()


def test_a_holder_whose_memory_is_full_does_not_stop_training(
    here: Machine, peer: Machine, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    room_bytes = [1000]
    peer.store = ShardStore("m1", available_bytes=lambda: room_bytes[0])
    peer.server.close()
    peer.server = TransferServer("127.0.0.1", peer.store, SECRET, JOB)
    peer.info = MachineInfo("m1", "127.0.0.1", peer.server.port, 0, os.getpid(), 0.0)
    with channel_of(here, peer) as (channel, theirs):
        session = connect(theirs)
        for step in (1, 2):
            session.save(step, {"x": step})
        assert "machine m1: no memory for rank 0's shard" in channel.unprotected_reason
        room_bytes[0] = 2**30
        session.save(3, {"x": 3})
        session.close()
        assert channel.protected_step == 3
        assert channel.unprotected_reason == ""
    assert caplog.text.count("rank 0 on m0: step 2 has no backup: refused by the other side") == 1
    assert [copy.steps for copy in here.store.copies(verify=True)] == [(2, 3)]
    assert [copy.steps for copy in peer.store.copies(verify=True)] == [(3,)]


def test_a_step_that_is_not_there_is_not_restored(here: Machine, connect: Connect) -> None:
    with channel_of(here, restore_step=7) as (_, theirs):
        session = connect(theirs)
        with pytest.raises(PermanentError, match="m0 has no step 7 of rank 0"):
            session.restore()
        session.close()


def test_a_holder_that_is_gone_costs_a_warning_and_not_the_step(
    here: Machine, peer: Machine, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with channel_of(here, peer) as (channel, theirs):
        session = connect(theirs)
        session.save(1, {"x": 1})
        assert channel.protected_step == 1
        assert channel.backup_lag_steps == 0
        peer.server.close()
        session.save(2, {"x": 2})
        session.close()
        assert channel.protected_step == 1
        assert channel.backup_lag_steps == 1
        assert "cannot reach" in channel.unprotected_reason
    assert "rank 0 on m0: step 2 has no backup" in caplog.text
    assert [copy.steps for copy in here.store.copies(verify=True)] == [(1, 2)]


def test_a_frozen_holder_costs_its_time_once(here: Machine, connect: Connect) -> None:
    # It takes connections, and never says a word.
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        peer = MachineInfo("m1", "127.0.0.1", frozen.getsockname()[1], 0, 0, 0.0)
        ours, theirs = socket.socketpair()
        channel = RankChannel(
            0, 1, ours, here.store, here.sender, peer, 0, lambda rank, step: None, 0.3
        )
        channel.start()
        session = connect(theirs)
        took_s: list[float] = []
        for step in range(1, 5):
            began_s = time.monotonic()
            session.save(step, {"x": step})
            took_s.append(time.monotonic() - began_s)
        assert took_s[0] >= 0.3
        assert max(took_s[1:]) < 0.2
        assert "m1" in channel.unprotected_reason
        session.close()
        channel.close()


def test_an_agent_that_is_gone_ends_the_rank(here: Machine, connect: Connect) -> None:
    with channel_of(here) as (channel, theirs):
        session = connect(theirs)
        session.save(1, {"x": 1})
        channel.close()
        with pytest.raises(PermanentError, match="the agent is gone"):
            session.save(2, {"x": 2})
        session.close()


def test_a_lack_of_memory_is_said_with_numbers(connect: Connect) -> None:
    store = ShardStore("m1", available_bytes=lambda: 3 * 2**20)
    sender = BackupSender(store, SECRET, JOB)
    ours, theirs = socket.socketpair()
    channel = RankChannel(3, 1, ours, store, sender, None, 0, lambda rank, step: None, 1.0)
    channel.start()
    session = connect(theirs)
    session.save(1, {"x": 1})
    with pytest.raises(PermanentError, match="machine m1: no memory for rank 3's shard: needs"):
        session.save(2, {"x": torch.ones(1_000_000)})
    session.close()
    channel.close()
    assert [copy.steps for copy in store.copies()] == [(1,)]


def test_a_second_connection_of_one_process_is_refused(here: Machine, connect: Connect) -> None:
    with channel_of(here) as (_, theirs):
        again = theirs.dup()
        session = connect(theirs)
        with pytest.raises(PermanentError, match="called before"):
            connect(again)
        session.close()


def test_a_rank_that_talks_nonsense_loses_its_channel(here: Machine) -> None:
    with channel_of(here) as (_, theirs):
        theirs.settimeout(PATIENCE_S)
        theirs.sendall(b"\xff" * 100)
        assert theirs.recv(1) == b""


def test_a_flipped_bit_is_found_on_request(here: Machine, connect: Connect) -> None:
    with channel_of(here) as (_, theirs):
        session = connect(theirs)
        session.save(1, {"x": torch.ones(100)})
        session.save(2, {"x": torch.ones(100)})
        session.close()
    flip_a_bit(here.store, 1)
    assert [here.store.holds(0, step) for step in (1, 2, 3)] == [True, True, False]
    assert [copy.steps for copy in here.store.copies()] == [(1, 2)]
    assert [copy.steps for copy in here.store.copies(verify=True)] == [(2,)]


def flip_a_bit(store: ShardStore, step: int) -> None:
    region = store.region(0)
    assert region is not None
    found = region.view.find(step)
    assert found is not None
    region.view.body(found[0])[found[1].body_bytes - 1] ^= 1
