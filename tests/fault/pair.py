"""Two programs for `test_faultpoints`: a machine's checkpoint side, and a process that forks ranks.

Both take orders, JSON with descriptors beside it, from the socket CONTROL_FD, and answer each.
Armed with a fault, they kill a process, be it themselves, when they come to a point of a shard's
life for the n-th time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any

from everstep.agent import link
from everstep.agent.borrowing import Borrowing
from everstep.agent.channel import RankChannel
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.asking import pull
from everstep.agent.transfer.sender import BackupSender
from everstep.agent.transfer.server import TransferServer
from everstep.core import faultpoint, names
from everstep.core.errors import EverstepError
from everstep.core.model import MachineInfo
from everstep.core.orders import Loan, Pull
from everstep.core.parts import Replicated

HOST = "127.0.0.1"
SECRET = b"a secret of the job"
JOB = "job"
NUM_STEPS = 6


def arm(point: str, count: int, pid: int) -> None:
    """Kill a process when this one comes to the point for the `count`-th time."""
    left = count

    def strike(reached: faultpoint.Point) -> None:
        nonlocal left
        left -= reached == point
        if reached == point and left == 0:
            os.kill(pid or os.getpid(), signal.SIGKILL)

    faultpoint.hooks.append(strike)


class MachineProgram:
    """Answers orders like an agent's, without its processes."""

    def __init__(self, name: str) -> None:
        self.store = ShardStore(name)
        self.server = TransferServer(HOST, self.store, SECRET, JOB)
        self.sender = BackupSender(self.store, SECRET, JOB)
        self.share([])

    def info(self) -> list[Any]:
        return [self.store.machine, HOST, self.server.port, 0, os.getpid(), 0.0]

    def arm(self, point: str, count: int, pid: int) -> None:
        arm(point, count, pid)

    def share(self, replicated: list[str]) -> None:
        """What its two ranks have in common."""
        self.borrowing = Borrowing(self.store, SECRET, JOB, Replicated(tuple(replicated), 2))

    def prepare(self, attempt: int, own: int, held: int, restore_step: int) -> None:
        self.store.advance(attempt)
        self.store.discard_after(restore_step)
        self.store.keep_only([own], [held])
        self.borrowing.begin([own], restore_step)

    def serve(self, fd: int, rank: int, attempt: int, holder: list[Any], restore_step: int) -> None:
        sock = socket.socket(fileno=fd)
        info = MachineInfo(*holder)

        def ignore(rank: int, step: int) -> None:
            pass

        RankChannel(
            rank, attempt, sock, self.store, self.sender, info, restore_step, ignore, 5.0,
            borrowing=self.borrowing,
        ).start()  # fmt: skip

    def freeze(self, attempt: int) -> list[Any]:
        """What the machine holds, and whether all of it is as it was saved."""
        self.store.advance(attempt)
        copies = self.store.copies()
        held = [[c.rank, c.steps, c.in_parts] for c in copies]
        return [copies == self.store.copies(verify=True), held]

    def borrow(self, ranks: list[int], machine: str, port: int, step: int) -> list[Any]:
        return self.borrowing.fetch(Loan(tuple(ranks), machine, HOST, port), step)

    def borrowed(self) -> list[int]:
        """Whose parts are here, beside the machine's own."""
        return list(self.borrowing.ranks)

    def pull(self, rank: int, machine: str, port: int, step: int) -> str:
        try:
            pull(Pull(rank, machine, HOST, port), step, self.store, SECRET, JOB)
        except EverstepError as error:
            return str(error)
        return ""


def run_machine(control: socket.socket, name: str) -> None:
    # So that a state as small as a test's has several.
    link.CHUNK_BYTES = 256 * 1024
    program = MachineProgram(name)
    while True:
        data, fds, _, _ = socket.recv_fds(control, 65536, 1)
        if not data:
            os._exit(0)
        order, arguments = json.loads(data)
        answer = getattr(program, order)(*fds, *arguments)
        control.send(json.dumps(answer).encode())


def train(environment: dict[str, str], fault: list[Any] | None) -> None:
    """A rank's life: every step needs all ranks, and changes the saved tensors in place."""
    import torch.distributed as dist  # noqa: PLC0415 - a machine's program does without torch
    from tests.fault import saver  # noqa: PLC0415

    from everstep import checkpoint  # noqa: PLC0415

    os.environ.update(environment)
    if fault is not None:
        arm(fault[0], fault[1], fault[2])
    rank, num_ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    distributed: Any = dist
    store = distributed.TCPStore(HOST, int(environment["MASTER_PORT"]), None, False)
    session = checkpoint.connect()
    restored = session.restore()
    first = 1
    state: dict[str, Any] = saver.state_of(0)
    if restored is not None:
        assert saver.same(saver.state_of(restored.step), restored.state), "a mixture"
        first, state = restored.step + 1, restored.state
    for step in range(first, first + NUM_STEPS):
        gradient = f"{environment['ATTEMPT']}/gradient/{step}"
        store.add(gradient, 1)
        while store.add(gradient, 0) < num_ranks:
            time.sleep(0.0005)
        session.wait_before_update()
        for tensor in (state["weights"], state["moments"][0]):
            tensor.fill_(step)
        state["step"] = step
        store.set(f"finished/{rank}", str(step))
        session.save(step, state)
    session.close()


def run_forker(control: socket.socket) -> None:
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(control, 65536, 1)
        if not data:
            return
        environment, fault = json.loads(data)
        pid = os.fork()
        if pid == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            status = 1
            try:
                train({**environment, names.ENV_CHANNEL_FD: str(fds[0])}, fault)
                status = 0
            except EverstepError as error:
                print(f"rank {environment['RANK']}: {error}", file=sys.stderr)  # noqa: T201
            except BaseException:  # noqa: BLE001 - a forked child must not go on here
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(status)
        os.close(fds[0])
        control.send(json.dumps(pid).encode())


if __name__ == "__main__":
    orders = socket.socket(fileno=int(os.environ["CONTROL_FD"]))
    if sys.argv[1] == "forker":
        run_forker(orders)
    else:
        run_machine(orders, sys.argv[1])
