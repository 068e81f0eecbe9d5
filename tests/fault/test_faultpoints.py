"""Whoever dies at whichever point of a step's way into two memories: the job goes on from there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.fault.machines import lives

from everstep.core.faultpoint import POINTS, Point
from everstep.core.groups import Layout
from everstep.core.model import MachineInfo
from everstep.core.orders import FROM_THE_BEGINNING, MachineReport, ShardCopy
from everstep.core.placement import backup_placement
from everstep.core.restore import plan_restore

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
PATIENCE_S = 30.0
LAYOUT = Layout(gpus_per_machine=1, dp=2)
PLAN = backup_placement(LAYOUT)
RANKS = range(LAYOUT.world_size)

OF_HOLDER: tuple[Point, ...] = ("before_receive", "mid_receive", "after_receive", "before_ack")
OF_AGENT: tuple[Point, ...] = ("before_send", "mid_send", "after_send")
# In the middle of the third step: a step has two tensors, and eight chunks.
COUNTS: dict[Point, int] = {"mid_copy": 5, "mid_send": 20, "mid_receive": 20}
# One tensor, and four chunks, where each rank keeps half of what both have in common.
COUNTS_IN_PARTS: dict[Point, int] = {"mid_copy": 3, "mid_send": 10, "mid_receive": 10}
IN_PARTS = ["weights", "moments"]
# One of each kind; all the others are as they are with whole states, save for what they carry.
OFTEN_IN_PARTS = {("mid_copy", "rank"), ("mid_send", "agent"), ("after_receive", "holder")}


class Program:
    """One of `pair`'s programs."""

    def __init__(self, name: str) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(PATIENCE_S)
        paths = ":".join(str(ROOT / root) for root in ("core", "agent", "."))
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/fault/pair.py"), name],
            env={**os.environ, "CONTROL_FD": str(theirs.fileno()), "PYTHONPATH": paths},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def ask(self, *order: Any, fd: int | None = None) -> Any:
        data = json.dumps(order).encode()
        socket.send_fds(self.control, [data], [] if fd is None else [fd])
        answer = self.control.recv(65536)
        assert answer, "the program died"
        return json.loads(answer)

    def close(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def forker() -> Iterator[Program]:
    program = Program("forker")
    program.control.settimeout(120)
    yield program
    program.close()


class Job:
    """Two machines with a rank each, and whatever replaces them."""

    def __init__(self, forker: Program, replicated: list[str]) -> None:
        distributed: Any = dist
        self.replicated = replicated
        self.forker = forker
        self.store = distributed.TCPStore(HOST, 0, None, True, wait_for_workers=False)
        self.machines = [self.program(f"m{slot}") for slot in RANKS]
        self.infos = [MachineInfo(*machine.ask("info", [])) for machine in self.machines]
        self.pids: list[int] = []

    def program(self, name: str) -> Program:
        program = Program(name)
        program.ask("share", [self.replicated])
        return program

    def start(self, attempt: int, restore_step: int, fault: list[Any] | None = None) -> None:
        """Start both ranks; the fault is rank 0's."""
        self.pids = []
        for rank in RANKS:
            self.machines[rank].ask("prepare", [attempt, rank, 1 - rank, restore_step])
        for rank in RANKS:
            ours, theirs = socket.socketpair()
            holder = self.infos[PLAN.holder[rank]]
            parts = [holder.machine, HOST, holder.transfer_port, 0, 0, 0.0]
            serve = [rank, attempt, parts, restore_step]
            self.machines[rank].ask("serve", serve, fd=ours.fileno())
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(RANKS)),
                "MASTER_ADDR": HOST,
                "MASTER_PORT": str(self.store.port),
                "ATTEMPT": str(attempt),
            }
            self.pids.append(
                self.forker.ask(environment, None if rank else fault, fd=theirs.fileno())
            )
            ours.close()
            theirs.close()

    def finished(self) -> int:
        """The newest step that a rank has finished."""
        keys = [f"finished/{rank}" for rank in RANKS]
        return max(int(self.store.get(key)) for key in keys if self.store.check([key]))

    def replace(self, slot: int) -> None:
        """The machine is lost: its rank goes with it, and another one takes its place."""
        kill(self.pids[slot])
        self.machines[slot].close()
        self.machines[slot] = self.program(f"spare{slot}")
        self.infos[slot] = MachineInfo(*self.machines[slot].ask("info", []))

    def restore(self, attempt: int) -> int:
        """Agree on a step and put it everywhere, as the recovery does; the step."""
        for pid in self.pids:
            kill(pid)
        reports: list[MachineReport] = []
        for info, machine in zip(self.infos, self.machines, strict=True):
            whole, copies = machine.ask("freeze", [attempt])
            assert whole, f"{info.machine} offers a torn step"
            held = tuple(ShardCopy(r, tuple(steps), 0, tuple(parts)) for r, steps, parts in copies)
            assert all(bool(self.replicated) == bool(copy.in_parts) for copy in held)
            reports.append(MachineReport(info.machine, (), (), held))
        plan = plan_restore(reports, self.infos, LAYOUT, PLAN)
        assert not plan.missing
        for info, machine in zip(self.infos, self.machines, strict=True):
            for item in plan.pulls.get(info.machine, ()):
                pull = [item.rank, item.machine, item.port, plan.step]
                assert machine.ask("pull", pull) == ""
            assert bool(plan.loans.get(info.machine)) == bool(self.replicated)
            for loan in plan.loans.get(info.machine, ()):
                borrow = [loan.ranks, loan.machine, loan.port, plan.step]
                assert machine.ask("borrow", borrow) == [[rank, ""] for rank in loan.ranks]
        return plan.step

    def close(self) -> None:
        for pid in self.pids:
            kill(pid)
        for machine in self.machines:
            machine.close()


CASES = [
    pytest.param(
        replicated,
        point,
        victim,
        id=f"{'parts' if replicated else 'whole'}-{point}-{victim}",
        marks=[pytest.mark.soak] if replicated and (point, victim) not in OFTEN_IN_PARTS else [],
    )
    for replicated in ([], IN_PARTS)
    for point in POINTS
    for victim in ("rank", "agent", "holder")
]


@pytest.fixture
def job(forker: Program, request: pytest.FixtureRequest) -> Iterator[Job]:
    job = Job(forker, request.getfixturevalue("replicated"))
    yield job
    job.close()


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not lives(pid))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "in vain"
        time.sleep(0.002)


@pytest.mark.parametrize(("replicated", "point", "victim"), CASES)
def test_a_death_at_any_point_costs_one_finished_step_at_most(
    job: Job, replicated: list[str], point: Point, victim: str
) -> None:
    count = (COUNTS_IN_PARTS if replicated else COUNTS).get(point, 3)
    fault = None
    if point in OF_HOLDER or point in OF_AGENT:
        # The rank's process is there only later; its machine's death is what it dies of.
        slot = 1 if point in OF_HOLDER else 0
        target = {"rank": 0, "agent": 0, "holder": 1}[victim]
        job.start(1, FROM_THE_BEGINNING)
        pid = job.pids[0] if victim == "rank" else job.machines[target].process.pid
        job.machines[slot].ask("arm", [point, count, pid])
    else:
        target = 1 if victim == "holder" else 0
        pid = 0 if victim == "rank" else job.machines[target].process.pid
        fault = [point, count, pid]
        job.start(1, FROM_THE_BEGINNING, fault)
    if victim == "rank":
        wait_until(lambda: not lives(job.pids[0]))
    else:
        job.machines[target].process.wait(PATIENCE_S)
        job.replace(target)
    finished = job.finished()
    step = job.restore(2)
    assert step > FROM_THE_BEGINNING
    assert finished - step <= 1
    # The ranks compare what they restore with what it has to be.
    job.start(2, step)
    wait_until(lambda: not any(map(lives, job.pids)))
    assert job.finished() == step + 6
    # What was lent for the start has been given back.
    assert [machine.ask("borrowed", []) for machine in job.machines] == [[], []]
    assert job.restore(3) == step + 6
