"""Two ranks that keep once what they have in common: verified, lent, mended, and given up."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.fault.test_checkpoint import JOB, PATIENCE_S, SECRET, Machine

from everstep import checkpoint
from everstep.agent.borrowing import Borrowing
from everstep.agent.channel import RankChannel
from everstep.checkpoint import sharing
from everstep.checkpoint.session import Restored
from everstep.core import names
from everstep.core.orders import Loan
from everstep.core.parts import Replicated

HOST = "127.0.0.1"
ELEMENTS = 200_000
RANKS = (0, 1)


def state_of(rank: int, step: int) -> dict[str, Any]:
    return {
        "model": torch.arange(ELEMENTS, dtype=torch.float64) + step,
        "optimizer": [torch.full((ELEMENTS,), float(step)), torch.tensor(step)],
        "rng": torch.full((16,), 10 * rank + step),
    }


class Pair:
    """Two machines with a rank each, that keep each other's backups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, replicated: tuple[str, ...]) -> None:
        distributed: Any = dist
        self._rendezvous = distributed.TCPStore(HOST, 0, None, True, wait_for_workers=False)
        self._monkeypatch = monkeypatch
        for name, value in (
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", HOST),
            ("MASTER_PORT", str(self._rendezvous.port)),
        ):
            monkeypatch.setenv(name, value)
        self.machines = [Machine(f"m{rank}") for rank in RANKS]
        said = Replicated(replicated, 2)
        self.borrowing = [Borrowing(m.store, SECRET, JOB, said) for m in self.machines]
        self.damages: list[str] = []
        self._open = contextlib.ExitStack()
        self.pool = self._open.enter_context(ThreadPoolExecutor(2))

    def begin(self, attempt: int, step: int = 0) -> list[checkpoint.Session]:
        sessions: list[checkpoint.Session] = []
        for rank, machine in enumerate(self.machines):
            machine.store.advance(attempt)
            machine.store.discard_after(step)
            machine.store.keep_only([rank], [1 - rank])
            self.borrowing[rank].begin([rank], step)
            ours, theirs = socket.socketpair()
            channel = RankChannel(
                rank, attempt, ours, machine.store, machine.sender, self.machines[1 - rank].info,
                step, lambda rank, step: None, PATIENCE_S,
                lambda rank, step, text: self.damages.append(text),
                borrowing=self.borrowing[rank],
            )  # fmt: skip
            channel.start()
            self._open.callback(channel.close)
            self._monkeypatch.setenv(names.ENV_CHANNEL_FD, str(theirs.detach()))
            sessions.append(checkpoint.connect())
            self._open.callback(sessions[-1].close)
        return sessions

    def save(self, sessions: list[checkpoint.Session], step: int, *strange: dict[str, Any]) -> None:
        states = strange or [state_of(rank, step) for rank in RANKS]
        # Neither is done before both are.
        done = [
            self.pool.submit(session.save, step, state, blocking=True)
            for session, state in zip(sessions, states, strict=True)
        ]
        for one in done:
            one.result(PATIENCE_S)

    def lend(self, step: int) -> None:
        for rank in RANKS:
            info = self.machines[1 - rank].info
            loan = Loan((1 - rank,), info.machine, HOST, info.transfer_port)
            assert self.borrowing[rank].fetch(loan, step) == [(1 - rank, "")]

    def restored(self, sessions: list[checkpoint.Session]) -> list[Restored]:
        found = [self.pool.submit(session.restore) for session in sessions]
        return [one for one in (each.result(PATIENCE_S) for each in found) if one is not None]

    def bytes_of(self, rank: int) -> int:
        region = self.machines[rank].store.region(rank)
        assert region is not None
        newest = region.view.newest()
        assert newest is not None
        return newest[1].body_bytes

    def close(self) -> None:
        self._open.close()
        for machine in self.machines:
            machine.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(monkeypatch, getattr(request, "param", ("model", "optimizer")))
    yield pair
    pair.close()


def assert_restored(pair: Pair, sessions: list[checkpoint.Session], step: int) -> None:
    for rank, restored in enumerate(pair.restored(sessions)):
        wanted = state_of(rank, step)
        assert restored.step == step
        assert torch.equal(restored.state["model"], wanted["model"])
        assert torch.equal(restored.state["optimizer"][0], wanted["optimizer"][0])
        assert int(restored.state["optimizer"][1]) == step
        assert torch.equal(restored.state["rng"], wanted["rng"])


WHOLE_BYTES = ELEMENTS * 12


def test_each_keeps_half_and_gets_the_other_half_back(pair: Pair) -> None:
    sessions = pair.begin(1)
    for step in (1, 2, 3):
        pair.save(sessions, step)
    for rank in RANKS:
        assert abs(pair.bytes_of(rank) - WHOLE_BYTES / 2) < 4096
        copies = pair.machines[rank].store.copies(verify=True)
        assert [copy.in_parts for copy in copies] == [(2, 3), (2, 3)]
    sessions = pair.begin(2, 3)
    pair.lend(3)
    pair.lend(3)
    assert_restored(pair, sessions, 3)
    assert [borrowing.ranks for borrowing in pair.borrowing] == [(1,), (0,)]
    pair.save(sessions, 4)
    # Given back.
    assert [borrowing.ranks for borrowing in pair.borrowing] == [(), ()]


@pytest.mark.parametrize("where", ["at its owner", "at the borrower"])
def test_a_damaged_part_is_got_again(pair: Pair, where: str) -> None:
    sessions = pair.begin(1)
    for step in (1, 2):
        pair.save(sessions, step)
    sessions = pair.begin(2, 2)
    region = pair.machines[1].store.region(1)
    assert region is not None
    slot, shard = region.view.find(2) or pytest.fail("no step 2")
    last = region.view.body(slot)[shard.body_bytes - 8 : shard.body_bytes]
    if where == "at its owner":
        last[0] ^= 1
        pair.lend(2)
    else:
        last[0] ^= 1
        pair.lend(2)
        last[0] ^= 1
    assert_restored(pair, sessions, 2)
    assert bool(pair.damages) == (where == "at its owner")


def test_ranks_that_differ_from_the_first_save_on_keep_their_own(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = pair.begin(1)
    for step in (1, 2):
        states = [state_of(rank, step) for rank in RANKS]
        states[1]["model"][7] += 1
        pair.save(sessions, step, *states)
    assert "(model, optimizer) is not equal on ranks [0, 1] at step 1" in caplog.text
    assert pair.bytes_of(0) > WHOLE_BYTES
    found = pair.restored(pair.begin(2, 2))
    assert float(found[1].state["model"][7]) == float(found[0].state["model"][7]) + 1


def test_a_rank_that_strays_is_found_at_the_next_comparison(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sharing, "COMPARE_EVERY_SAVES", 3)
    sessions = pair.begin(1)
    for step in range(1, 5):
        pair.save(sessions, step)
    assert not caplog.records
    assert pair.bytes_of(0) < WHOLE_BYTES
    states = [state_of(rank, 5) for rank in RANKS]
    states[1]["optimizer"][1] += 1
    for step in (5, 6, 7):
        pair.save(sessions, step, *states)
    assert "is not equal on ranks [0, 1] at step 7" in caplog.text
    assert pair.bytes_of(0) > WHOLE_BYTES


@pytest.mark.parametrize("pair", [("modle", "optimizer")], indirect=True)
def test_a_key_that_is_not_there_is_named(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.save(pair.begin(1), 1)
    assert "names modle, which the saved state (model, optimizer, rng) does not have" in caplog.text
