"""Machines that exist in memory only: they keep the promises of `everstep.agent.machine.Machine`.

A fake machine keeps the same order of attempts, refuses stale orders, answers repeated orders with
the first report, and can be told to be silent, to refuse, or to lose its memory.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from everstep.core.errors import PermanentError, StaleAttempt
from everstep.core.model import MachineInfo, RankExit, StepSeen
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
    StoredCheckpoint,
    TraceOrder,
)
from everstep.core.progress import StepBoard
from everstep.core.stacks.dump import Answer, RankTrace
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.core.vocabulary import Check, Verdict
from everstep.workflows.effects import MachineRequest
from tests.unit import stack_texts


@dataclass
class Effect:
    """One thing that really happened, in the fake world."""

    kind: str
    machine: str
    attempt: int


@dataclass
class FakeWorld:
    """What all fake machines of a job share: the ranks' progress, and what was done."""

    world_size: int
    board: StepBoard = field(init=False)
    effects: list[Effect] = field(default_factory=list[Effect])
    requests: list[MachineRequest] = field(default_factory=list[MachineRequest])
    """For machines that the job lacks, in order."""
    machines: dict[str, FakeMachine] = field(default_factory=dict[str, "FakeMachine"])
    stored: list[StoredCheckpoint] = field(default_factory=list[StoredCheckpoint])
    damaged: set[str] = field(default_factory=set[str])
    """Names of stored checkpoints of which nothing can be restored."""
    stacks: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Where ranks stand, as py-spy writes it; others all stand in one collective."""
    moving: bool = False
    """Whether ranks stand elsewhere each time that they are asked."""
    unheard: set[str] = field(default_factory=set[str])
    """Machines that cannot say where their ranks stand."""
    shown: tuple[str, ...] = ()
    """Who holds which slot, as the cluster shows it."""
    quarantined: set[str] = field(default_factory=set[str])
    """Machines on which nothing new may begin."""
    ever_quarantined: set[str] = field(default_factory=set[str])
    """Those that ever were so while they lived on."""
    minds: dict[str, str] = field(default_factory=dict[str, str])
    """Machines that the cluster refuses as standbys, and why."""
    places: dict[str, str] = field(default_factory=dict[str, str])
    """Where machines stand."""
    budget: str = ""
    """What every eviction has to wait for."""
    cluster_away: bool = False
    """Whether nobody answers for the cluster."""
    brings_nothing: bool = False
    """Whether nobody answers who asks it for machines."""
    refused_code: set[str] = field(default_factory=set[str])
    """Folders of code that cannot run on machines that come from now on."""
    checks_last: bool = False
    """Whether checks on them end only when they are cut off."""
    training: bool = True
    """Whether ranks make progress by themselves once all of an attempt run."""

    seen: list[StepSeen] = field(default_factory=list[StepSeen])
    """Steps that all ranks have finished, as the analyzer logs them."""

    def __post_init__(self) -> None:
        self.board = StepBoard(self.world_size, 60.0)
        self.changed = asyncio.Condition()

    def done(self, kind: str) -> list[tuple[str, int]]:
        return [(e.machine, e.attempt) for e in self.effects if e.kind == kind]

    async def advance(self, attempt: int, step: int) -> None:
        """Let every rank of the attempt finish a step, and its copies be made."""
        async with self.changed:
            for rank in range(self.world_size):
                if (seen := self.board.note(attempt, rank, step, time.time())) is not None:
                    self.seen.append(seen)
            for machine in self.machines.values():
                machine.keep(step)
            self.changed.notify_all()

    async def wait_for_step(self, attempt: int, step: int) -> StepSeen:
        async with self.changed:
            while (seen := self.board.reached(attempt, step, time.time())) is None:
                await self.changed.wait()
        return seen


class FakeMachine:
    """One machine of a `FakeWorld`."""

    def __init__(self, world: FakeWorld, name: str) -> None:
        self.info = MachineInfo(name, "127.0.0.1", 1, 2, hash(name) % 30_000 + 1, time.time())
        self.world = world
        self.attempt = 0
        self.running: tuple[int, ...] = ()
        self.held: tuple[int, ...] = ()
        self.copies: dict[int, int] = {}
        self.exits: list[RankExit] = []
        self.may_stop = asyncio.Event()
        """Where it is not set, a stop order is carried out when it is."""
        self.may_stop.set()
        self.refuses_to_start = False
        self.refuses_code: set[str] = set(world.refused_code)
        """Folders of code that cannot run here."""
        self.storage_error = ""
        self.orders: list[StartOrder] = []
        self.code_directories: list[str] = []
        self.finds: dict[Check, Verdict] = {}
        """What checks say, where it is not "healthy"."""
        self.arithmetic = "right"
        """What its bitwise digest is made of."""
        self.replays = Verdict.HEALTHY
        """What it says of each trial that it takes part in."""
        self.fails_alone = False
        """Whether those that replay with it wait for it for ever."""
        self.checks_last = world.checks_last
        """Whether its checks end only when they are cut off."""
        self.bad_links: set[str] = set()
        """Machines to which its links are bad."""
        self._checked: dict[CheckOrder, CheckResult] = {}
        self._stopped: dict[int, MachineReport] = {}
        self._started: dict[int, StartReport] = {}
        world.machines[name] = self

    @property
    def name(self) -> str:
        return self.info.machine

    def mend(self) -> None:
        """Nothing is wrong with it any more."""
        self.finds, self.bad_links = {}, set()
        self.arithmetic, self.replays = "right", Verdict.HEALTHY

    def keep(self, step: int) -> None:
        for rank in (*self.running, *self.held):
            self.copies[rank] = step

    def crash(self, rank: int, signal: int | None = 9) -> RankExit:
        exit_code = None if signal is not None else 1
        ended = RankExit(
            rank, self.name, self.attempt, exit_code, signal, time.time(), self.copies.get(rank)
        )
        self.exits.append(ended)
        self.running = tuple(r for r in self.running if r != rank)
        return ended

    async def stop(self, order: StopOrder) -> MachineReport:
        self._refuse_stale(order.attempt)
        await self.may_stop.wait()
        if order.attempt not in self._stopped:
            self.world.effects.append(Effect("stop", self.name, order.attempt))
            self._stopped[order.attempt] = MachineReport(
                self.name,
                tuple(e for e in self.exits if e.attempt == order.attempt),
                self.running,
                tuple(ShardCopy(r, (s,), 1) for r, s in sorted(self.copies.items()) if s),
            )
            self.running = ()
        return self._stopped[order.attempt]

    async def restore(self, order: RestoreOrder) -> RestoreReport:
        self._refuse_stale(order.attempt)
        self.world.effects.append(Effect("restore", self.name, order.attempt))
        for pull in order.pulls:
            self.copies[pull.rank] = order.step
        if order.stored is not None:
            if order.stored.checkpoint in self.world.damaged:
                ranks = order.stored.ranks or (-1,)
                return RestoreReport(self.name, (), tuple((rank, "damaged") for rank in ranks))
            self.copies.update(dict.fromkeys(order.stored.ranks, order.step))
        return RestoreReport(self.name, tuple(p.rank for p in order.pulls), ())

    async def look_at_storage(self) -> StorageReport:
        if self.storage_error:
            return StorageReport(self.name, (), (), self.storage_error)
        return StorageReport(self.name, tuple(self.world.stored))

    async def start(self, order: StartOrder) -> StartReport:
        self._refuse_stale(order.attempt)
        if self.refuses_to_start:
            raise PermanentError(f"{self.name}: no memory for rank 0's shard")
        if order.attempt not in self._started:
            self.world.effects.append(Effect("start", self.name, order.attempt))
            self.attempt = order.attempt
            self.orders.append(order)
            self.running = tuple(rank.rank for rank in order.ranks)
            self.held = order.held_ranks
            self.code_directories.append(order.code_directory)
            self._started[order.attempt] = StartReport(self.name, (1,) * len(order.ranks), True)
            await self._train_when_complete(order)
        return self._started[order.attempt]

    async def prepare(self, order: PrepareOrder) -> PrepareReport:
        self.world.effects.append(Effect("prepare", self.name, self.attempt))
        problem = "train.py, line 3: invalid syntax" if order.directory in self.refuses_code else ""
        return PrepareReport(self.name, order.directory.rpartition("/")[2], problem)

    async def check(self, order: CheckOrder) -> CheckResult:
        self._refuse_stale(order.attempt)
        if order.attempt == self.attempt and self.running:
            raise PermanentError(f"ranks of attempt {order.attempt} run here: stop them first")
        if order not in self._checked:
            self.world.effects.append(Effect(f"check.{order.check}", self.name, order.attempt))
            if self.checks_last:
                await asyncio.Event().wait()
            bad = {
                info.machine
                for info in order.peers
                if info.machine in self.bad_links
                or self.name in self.world.machines[info.machine].bad_links
            }
            verdict = Verdict.FAULTY if bad else self.finds.get(order.check, Verdict.HEALTHY)
            digest = self.arithmetic if order.check is Check.BITWISE else ""
            self._checked[order] = CheckResult(
                self.name, order.check, verdict, f"{order.check}: {verdict}", digest,
                tuple(sorted(bad)), device="cpu",
            )  # fmt: skip
        return self._checked[order]

    async def trace(self, order: TraceOrder) -> tuple[int, dict[int, RankTrace]]:
        if self.name in self.world.unheard:
            raise PermanentError(f"{self.name}: no disk is left for stacks")
        if order.attempt not in (None, self.attempt):
            raise StaleAttempt(order.attempt or 0, self.attempt)
        self.world.effects.append(Effect("trace", self.name, self.attempt))
        times = self.world.done("trace").count((self.name, self.attempt))
        elsewhere = self.world.moving and times % 2 == 0
        calls = stack_texts.USER_LOCK if elsewhere else stack_texts.GRAD_SYNC
        return self.attempt, {
            rank: RankTrace(
                Answer.ANSWERED, "", self.world.stacks.get(rank) or stack_texts.dump(calls, rank)
            )
            for rank in self.running
        }

    async def replay(self, order: ReplayOrder) -> ReplayReport:
        self._refuse_stale(order.attempt)
        self.world.effects.append(Effect("replay", self.name, order.attempt))
        others = [self.world.machines[info.machine] for info in order.machines]
        if self.replays is Verdict.HEALTHY and any(other.fails_alone for other in others):
            await asyncio.Event().wait()
        return ReplayReport(self.name, self.replays, f"replay: {self.replays}")

    async def _train_when_complete(self, order: StartOrder) -> None:
        started = [m for m, a in self.world.done("start") if a == order.attempt]
        if self.world.training and len(started) == order.num_machines:
            await self.world.advance(order.attempt, order.restore_step + 1)

    def _refuse_stale(self, attempt: int) -> None:
        if attempt < self.attempt:
            raise StaleAttempt(attempt, self.attempt)
