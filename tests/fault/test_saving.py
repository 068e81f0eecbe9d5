"""Saving in the background: what returns at once, what waits, and for what."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, TimeoutError as NotYet
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.fault.test_checkpoint import Machine, state_in, wait_until

from everstep import checkpoint
from everstep.agent.channel import RankChannel
from everstep.agent.rank_voice import Word
from everstep.checkpoint.copying import Copier
from everstep.checkpoint.tree import FlatTree
from everstep.core import names
from everstep.core.channel import Entered
from everstep.core.errors import PermanentError
from everstep.core.model import MachineInfo

PATIENCE_S = 20.0
SOON_S = 0.3
LARGE = 1_000_000

Connect = Callable[..., checkpoint.Session]


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


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def connect(here: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Opens the session of a rank on `here`; closed at the end, with its channel."""
    with contextlib.ExitStack() as stack:

        def connect(
            rank: int = 0,
            holder: MachineInfo | None = None,
            redone_steps: Any = 1,
            on_word: Callable[[int, Word], None] = lambda rank, word: None,
        ) -> checkpoint.Session:
            ours, theirs = socket.socketpair()
            channel = RankChannel(
                rank,
                1,
                ours,
                here.store,
                here.sender,
                holder,
                0,
                lambda rank, step: None,
                PATIENCE_S,
                on_word=on_word,
            )
            channel.start()
            stack.callback(channel.close)
            monkeypatch.setenv(names.ENV_CHANNEL_FD, str(theirs.detach()))
            session = checkpoint.connect(redone_steps)
            stack.callback(session.close)
            return session

        yield connect


class Gate:
    """Lets copies begin one by one."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Semaphore(0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    copy = Copier.copy

    def wait_and_copy(self: Copier, state: FlatTree, payload: memoryview) -> None:
        gate.begun.release()
        assert gate.open.acquire(timeout=PATIENCE_S)
        copy(self, state, payload)

    monkeypatch.setattr(Copier, "copy", wait_and_copy)
    return gate


@contextlib.contextmanager
def waiting(pool: ThreadPoolExecutor, call: Callable[[], object]) -> Generator[None]:
    """The call does not return before the block is done, and does soon afterwards."""
    future = pool.submit(call)
    with pytest.raises(NotYet):
        future.result(SOON_S)
    yield
    future.result(PATIENCE_S)


def steps(machine: Machine, rank: int = 0) -> tuple[int, ...]:
    return next((c.steps for c in machine.store.copies(verify=True) if c.rank == rank), ())


def test_a_save_returns_before_its_copy_and_the_update_waits_for_it(
    connect: Connect, gate: Gate, threads: ThreadPoolExecutor, here: Machine
) -> None:
    session = connect()
    session.wait_before_update()
    session.save(1, {"x": torch.ones(LARGE)})
    with waiting(threads, session.wait_before_update):
        gate.open.release()
    session.save(2, {"x": torch.zeros(LARGE)})
    # The third would need the memory of the first, which is only free when the second is there.
    session_3 = threads.submit(session.save, 3, {"x": torch.zeros(LARGE)})
    with pytest.raises(NotYet):
        session_3.result(SOON_S)
    gate.open.release(2)
    session_3.result(PATIENCE_S)
    session.close()
    assert steps(here) == (2, 3)


def test_a_script_that_never_waits_is_made_to(
    connect: Connect, gate: Gate, threads: ThreadPoolExecutor
) -> None:
    session = connect()
    weights = torch.ones(LARGE)
    with waiting(threads, lambda: session.save(1, {"x": weights})):
        gate.open.release()
    weights.zero_()
    session.wait_before_update()
    session.save(2, {"x": weights})
    gate.open.release()
    # It has not waited again.
    with waiting(threads, lambda: session.save(3, {"x": weights})):
        gate.open.release()


def test_an_optimizer_waits_by_itself(
    connect: Connect, gate: Gate, threads: ThreadPoolExecutor, here: Machine
) -> None:
    session = connect()
    model = torch.nn.Linear(1000, 100)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    session.protect(optimizer)
    model(torch.ones(1000)).sum().backward()
    optimizer.step()
    saved = model.weight.detach().clone()
    session.save(1, {"model": model.state_dict()})
    assert gate.begun.acquire(timeout=PATIENCE_S)
    with waiting(threads, optimizer.step):
        gate.open.release()
    assert not torch.equal(saved, model.weight)
    session.close()
    region = here.store.region(0)
    assert region is not None
    assert saved.numpy().tobytes() in bytes(region.view.body(0))


def test_a_tensor_that_is_changed_too_early_is_named(connect: Connect, gate: Gate) -> None:
    session = connect()
    session.wait_before_update()
    weights = torch.ones(LARGE)
    session.save(1, {"x": [weights]})
    assert gate.begun.acquire(timeout=PATIENCE_S)
    weights.add_(1)
    gate.open.release()
    with pytest.raises(PermanentError, match=r"state\['x'\]\[0\] was changed while"):
        session.wait_before_update()


def test_small_things_may_change_at_once(connect: Connect, gate: Gate, here: Machine) -> None:
    session = connect()
    session.wait_before_update()
    statistics, losses = torch.ones(100), [1.0]
    session.save(1, {"statistics": statistics, "losses": losses})
    statistics.zero_()
    losses.append(2.0)
    gate.open.release()
    session.close()
    assert torch.equal(state_in(here.store, 1)["statistics"], torch.ones(100))
    assert state_in(here.store, 1)["losses"] == [1.0]


class SlowHolder:
    """Between a rank's machine and its holder: lets nothing through until it is told to."""

    def __init__(self, holder: Machine) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._holder = holder
        port = self._listener.getsockname()[1]
        self.info = MachineInfo("m1", "127.0.0.1", port, 0, 0, 0.0)
        self.go = threading.Event()
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.go.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            sock.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._holder.server.port))
            self._sockets += [near, far]
            back = threading.Thread(target=self._pass_on, args=(far, near), daemon=True)
            back.start()
            self._pass_on(near, far)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**20):
                # The greeting of a connection is small; a shard is not.
                if len(data) > 10_000:
                    self.go.wait()
                sink.sendall(data)


@pytest.fixture
def slow(peer: Machine) -> Iterator[SlowHolder]:
    holder = SlowHolder(peer)
    yield holder
    holder.close()


def test_an_update_waits_for_the_backup_when_one_step_may_be_redone(
    connect: Connect, slow: SlowHolder, threads: ThreadPoolExecutor, peer: Machine
) -> None:
    session = connect(holder=slow.info, redone_steps=1)
    session.wait_before_update()
    session.save(1, {"x": torch.ones(LARGE)})
    with waiting(threads, session.wait_before_update):
        slow.go.set()
    assert steps(peer) == (1,)


def test_what_training_stood_still_for_is_told_with_the_next_step(
    connect: Connect, slow: SlowHolder, threads: ThreadPoolExecutor
) -> None:
    told: list[float] = []

    def on_word(_: int, word: Word) -> None:
        if not isinstance(word, Entered):
            told.append(word.stalled_s or 0.0)

    session = connect(holder=slow.info, on_word=on_word)
    session.wait_before_update()
    session.save(1, {"x": torch.ones(LARGE)})
    wait_until(lambda: len(told) == 1)
    with waiting(threads, session.wait_before_update):
        slow.go.set()
    session.save(2, {"x": torch.ones(LARGE)})
    wait_until(lambda: len(told) == 2)
    session.report(2)
    wait_until(lambda: len(told) == 3)
    assert told[0] < SOON_S <= told[1] <= told[2] < PATIENCE_S


def test_an_update_never_waits_for_its_steps_backup_when_two_may_be_redone(
    connect: Connect, slow: SlowHolder, threads: ThreadPoolExecutor, peer: Machine
) -> None:
    session = connect(holder=slow.info, redone_steps=2)
    session.wait_before_update()
    session.save(1, {"x": torch.ones(LARGE)})
    session.wait_before_update()
    session.save(2, {"x": torch.ones(LARGE)})
    assert steps(peer) == ()
    # The copy of step 2 waits for the backup of step 1, and so does the update after it.
    with waiting(threads, session.wait_before_update):
        slow.go.set()
    session.close()
    assert steps(peer) == (1, 2)


def test_a_blocking_save_returns_when_both_have_it(
    connect: Connect, slow: SlowHolder, threads: ThreadPoolExecutor, peer: Machine
) -> None:
    session = connect(holder=slow.info, redone_steps=2)
    session.wait_before_update()
    with waiting(threads, lambda: session.save(1, {"x": torch.ones(LARGE)}, blocking=True)):
        slow.go.set()
    assert steps(peer) == (1,)


def test_ranks_wait_for_each_others_steps(
    connect: Connect, threads: ThreadPoolExecutor, here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed: Any = dist
    server = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    first, second = connect(0), connect(1)
    for session in (first, second):
        session.wait_before_update()
    for step in (1, 2, 3):
        first.save(step, {"x": torch.ones(LARGE)})
        with waiting(threads, first.wait_before_update):
            second.save(step, {"x": torch.ones(LARGE)})
        second.wait_before_update()
    assert steps(here, 0) == steps(here, 1) == (2, 3)
    # No step but the last leaves anything in the store.
    assert server.num_keys() <= 3
    first.save(4, {})
    # The end of a rank does not wait for the others.
    began_s = time.monotonic()
    first.close()
    assert time.monotonic() - began_s < 2
    assert steps(here, 0) == (3, 4)
    del server


def test_a_rank_without_its_jobs_store_ends(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    session = connect()
    with pytest.raises(PermanentError, match="2 ranks, and 'MASTER_ADDR' is not set"):
        session.save(1, {})


def test_the_script_may_end_right_after_its_last_save(
    connect: Connect, here: Machine, peer: Machine
) -> None:
    session = connect(holder=peer.info)
    session.wait_before_update()
    session.save(1, {"x": torch.ones(LARGE)})
    session.close()
    assert steps(here) == steps(peer) == (1,)
    wait_until(lambda: not any(t.name == "everstep-saver" for t in threading.enumerate()))


def test_nothing_of_a_torn_step_is_offered(connect: Connect, gate: Gate, here: Machine) -> None:
    session = connect()
    session.wait_before_update()
    session.save(1, {"x": torch.ones(LARGE)})
    gate.open.release()
    session.wait_before_update()
    session.save(2, {"x": torch.ones(LARGE)})
    assert gate.begun.acquire(timeout=PATIENCE_S)
    assert gate.begun.acquire(timeout=PATIENCE_S)
    assert steps(here) == (1,)
    gate.open.release()
    session.wait_before_update()
    assert steps(here) == (1, 2)
