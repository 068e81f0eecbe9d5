"""All machines of `benchmarks.scale` in one process, and their analyzer.

`python -m benchmarks.scale_agents JOB MACHINES STANDBYS`. Each machine has its own queue, worker
and reporter, as an agent has, and answers at once, with reports as large as those of 8 ranks. What
is to happen is told on standard input, a line each, and answered by a line when it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from everstep.core.errors import StaleAttempt
from everstep.core.model import Alert, MachineInfo, RankExit, RanksFinished, StepSeen
from everstep.core.orders import (
    CheckOrder,
    CheckResult,
    MachineReport,
    PrepareOrder,
    PrepareReport,
    RestoreOrder,
    RestoreReport,
    ShardCopy,
    StartOrder,
    StartReport,
    StopOrder,
    StorageReport,
)
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.core.vocabulary import Observer, Symptom, Verdict
from everstep.workers import registry, runtime, stopping
from everstep.workers.agent import alert_of
from everstep.workers.reports import Reporter

STEPS_A_WORD = 100
LAST_LINES = (
    *(
        f'[rank{{rank}}]:   File "/opt/train/megatron/training/training.py", line {1200 + n}, in '
        "train_step_of_the_model_that_everybody_trains(forward_step_func, data_iterator, model)"
        for n in range(18)
    ),
    "[rank{rank}]: torch.distributed.DistBackendError: NCCL error: remote process exited",
    "[rank{rank}]: ncclRemoteError: A call failed possibly due to a network error or a remote "
    "process exiting prematurely. Last error: connection closed by peer",
)
"""What a rank whose peer is gone leaves behind: 20 lines, some 3 KB."""


@dataclass
class Cluster:
    """What all machines share: how far training is."""

    machines: int
    step: int = 0
    attempt: int = 0
    started: set[str] = field(default_factory=set[str])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def starts(self, machine: str, order: StartOrder) -> None:
        """One machine's ranks run; with the last one's, training goes on by a step."""
        async with self.changed:
            if order.attempt != self.attempt:
                self.attempt, self.step = order.attempt, order.restore_step
                self.started = set()
            self.started.add(machine)
            if len(self.started) == self.machines:
                self.step += 1
                self.changed.notify_all()

    async def train(self) -> None:
        """Many steps at once."""
        async with self.changed:
            self.step += STEPS_A_WORD
            self.changed.notify_all()

    async def wait_for_step(self, attempt: int, step: int) -> StepSeen:
        """What an analyzer answers."""
        async with self.changed:
            await self.changed.wait_for(
                lambda: (
                    self.attempt == attempt
                    and len(self.started) == self.machines
                    and self.step >= step
                )
            )
        return StepSeen(attempt, self.step, time.time())


NOBODY = 5_000_000
"""Above all process ids that Linux gives."""

SLEEP = "import sys; sys.stdin.read()"
"""A program that ends when this process does."""


def stand_in(name: str) -> int:
    """Start what looks like a machine's agent in a list of processes; its id.

    A standby is given a slot only while its agent's process lives.
    """
    command = [sys.executable, "-c", SLEEP, "everstep.workers.agent", name]
    return subprocess.Popen(command, stdin=subprocess.PIPE).pid


class LightMachine:
    """A machine without processes, which keeps the promises of `everstep.agent.machine.Machine`.

    Args:
        cluster: What it shares with the others.
        name: Its name.
        number: Unique among them.
        pid: Of its agent's process.
    """

    def __init__(self, cluster: Cluster, name: str, number: int, pid: int) -> None:
        self.info = MachineInfo(
            name, f"10.{number // 62_500}.{number // 250 % 250}.{number % 250 + 1}", 29_400, 29_500,
            pid, time.time(),
        )  # fmt: skip
        self.attempt = 0
        self.running: tuple[int, ...] = ()
        self.exits: tuple[RankExit, ...] = ()
        self._cluster = cluster
        self._held: tuple[int, ...] = ()
        self._stopped: dict[int, MachineReport] = {}
        self._started: dict[int, StartReport] = {}

    def crash(self) -> list[Alert]:
        """All ranks lose their peers and end."""
        self.exits = tuple(
            RankExit(
                rank, self.info.machine, self.attempt, 1, None, time.time(), self._cluster.step,
                tuple(line.format(rank=rank) for line in LAST_LINES),
            )
            for rank in self.running
        )  # fmt: skip
        self.running = ()
        return [alert_of(rank_exit) for rank_exit in self.exits]

    async def stop(self, order: StopOrder) -> MachineReport:
        """See `Machine`."""
        self._refuse_stale(order.attempt)
        if order.attempt not in self._stopped:
            steps = (self._cluster.step - 1, self._cluster.step)
            owners = sorted({*self.running, *(e.rank for e in self.exits), *self._held})
            self._stopped[order.attempt] = MachineReport(
                self.info.machine,
                self.exits,
                self.running,
                tuple(ShardCopy(rank, steps, 10 << 30) for rank in owners),
            )
            self.running, self.exits = (), ()
        return self._stopped[order.attempt]

    async def restore(self, order: RestoreOrder) -> RestoreReport:
        """See `Machine`."""
        self._refuse_stale(order.attempt)
        return RestoreReport(self.info.machine, tuple(pull.rank for pull in order.pulls), ())

    async def look_at_storage(self) -> StorageReport:
        """See `Machine`."""
        return StorageReport(self.info.machine, ())

    async def start(self, order: StartOrder) -> StartReport:
        """See `Machine`."""
        self._refuse_stale(order.attempt)
        if order.attempt not in self._started:
            self.attempt = order.attempt
            self.running = tuple(rank.rank for rank in order.ranks)
            self._held = order.held_ranks
            pids = tuple(range(len(order.ranks)))
            self._started[order.attempt] = StartReport(self.info.machine, pids, True)
            await self._cluster.starts(self.info.machine, order)
        return self._started[order.attempt]

    async def prepare(self, order: PrepareOrder) -> PrepareReport:
        """See `Machine`."""
        return PrepareReport(self.info.machine, order.directory)

    async def check(self, order: CheckOrder) -> CheckResult:
        """See `Machine`."""
        self._refuse_stale(order.attempt)
        return CheckResult(
            self.info.machine, order.check, Verdict.HEALTHY, "8 ranks: as it should be", "a" * 64,
            took_s=1.0, device="cpu", figures=(("matmul_tflops", 1.0), ("copy_gb_s", 2.0)),
        )  # fmt: skip

    async def replay(self, order: ReplayOrder) -> ReplayReport:
        """See `Machine`."""
        return ReplayReport(self.info.machine, Verdict.HEALTHY, "passed")

    def _refuse_stale(self, attempt: int) -> None:
        if attempt < self.attempt:
            raise StaleAttempt(attempt, self.attempt)


class Fleet:
    """The machines with their reporters, and the analyzer's."""

    def __init__(self, cluster: Cluster, reporters: Sequence[Reporter], analyzer: Reporter) -> None:
        self.cluster = cluster
        self.analyzer = analyzer
        self.machines: dict[str, LightMachine] = {}
        for number in range(len(reporters)):
            name = f"m{number}"
            pid = NOBODY + number if number < cluster.machines else stand_in(name)
            self.machines[name] = LightMachine(cluster, name, number, pid)
        self.reporters = dict(zip(self.machines, reporters, strict=True))

    def do(self, word: str) -> None:
        """Let something happen that nobody has to wait for."""
        if word == "join":
            for name, machine in self.machines.items():
                self.reporters[name].put(machine.info)
        elif word == "storm":
            for name, machine in self.machines.items():
                for alert in machine.crash():
                    self.reporters[name].put(alert)
        elif word == "finish":
            for name in self.machines:
                finished = RanksFinished(name, self.cluster.attempt, time.time())
                self.reporters[name].put(finished)

    def lose(self, name: str) -> None:
        """A machine's agent is gone, by the word of the analyzer."""
        detail = f"agent of {name} lost"
        step = self.cluster.step
        self.analyzer.put(
            Alert(
                Observer.ANALYZER, Symptom.AGENT_LOST, time.time(), detail, machine=name, step=step
            )
        )


async def main(job: str, machines: int, standbys: int) -> int:
    """Serve until standard input ends."""
    client = await runtime.connect()
    cluster = Cluster(machines)
    reporters = [Reporter(client, job) for _ in range(machines + standbys)]
    fleet = Fleet(cluster, reporters, Reporter(client, job))
    workers: dict[str, contextlib.AsyncExitStack] = {}
    tasks = [asyncio.create_task(r.run()) for r in (*reporters, fleet.analyzer)]
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(registry.analyzer(client, job, cluster))
        for name, machine in fleet.machines.items():
            workers[name] = await stack.enter_async_context(contextlib.AsyncExitStack())
            await workers[name].enter_async_context(registry.agent(client, job, name, machine))
        print("ready", flush=True)
        while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
            what, _, name = word.partition(" ")
            if what == "begin":
                await cluster.wait_for_step(1, 1)
            elif what == "train":
                await cluster.train()
            elif what == "lose":
                fleet.lose(name)
                await workers[name].aclose()
            else:
                fleet.do(what)
            print(f"{word} {time.time()}", flush=True)
        for task in tasks:
            task.cancel()
    return 0


if __name__ == "__main__":
    stopping.die_with_parent()
    runtime.run_process(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
