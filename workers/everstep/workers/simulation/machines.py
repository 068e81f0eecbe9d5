"""What simulated machines answer to orders, and when. Computes; `cluster` is what workflows reach.

Times are seconds since the job's begin.
"""

from __future__ import annotations

import functools
from typing import TypeVar

from everstep.core.model import MachineInfo
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
    TraceOrder,
    TraceReport,
)
from everstep.core.simulation import showing
from everstep.core.simulation.chance import Spread
from everstep.core.simulation.faults import REPLAY
from everstep.core.simulation.world import World
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.core.vocabulary import Check, Verdict
from everstep.workflows.batches import MachineOrders, MachineReports

O = TypeVar("O")  # noqa: E741 - an order

CODE = "/code/"
"""Where simulated code lies."""


def info_of(machine: str, joined_at_s: float = 0.0) -> MachineInfo:
    """A simulated machine as its agent would announce it."""
    return MachineInfo(machine, "simulated", 1, 2, 1, joined_at_s)


@functools.lru_cache(maxsize=1 << 14)
def _copy(rank: int, step: int) -> ShardCopy:
    """What a rank's own machine and its holder both tell."""
    return ShardCopy(rank, (step,), 1)


class Machines:
    """Answers for all machines of a simulated job.

    Args:
        world: The model.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._times = world.setting.durations
        self._stopped: dict[int, float] = {}
        self._ordered: dict[int, dict[int, str]] = {}
        self._series: dict[str, tuple[int, float]] = {}

    def noticed(self) -> None:
        """What is looked at from now on is another matter."""
        self._series = {}

    def begins(self, attempt: int) -> bool:
        """Whether all machines of an attempt have been ordered to start just now."""
        begun = self._world.attempt is not None and self._world.attempt.number >= attempt
        return not begun and len(self._ordered.get(attempt, ())) == self._num_machines

    def begin(self, order: StartOrder, at_s: float) -> None:
        """All machines of an attempt begin their first step."""
        slots = self._ordered[order.attempt]
        names = [slots[slot] for slot in range(self._num_machines)]
        version = order.code_directory.removeprefix(CODE)
        self._world.begin(order.attempt, names, version, order.restore_step, at_s)

    def answer(self, batch: MachineOrders, now_s: float) -> tuple[MachineReports, float]:
        """The reports of a batch, and when all of its machines have answered."""
        machines = batch.machines
        if batch.stop:
            ready_s = self.stop(batch.stop[0], now_s)
            return MachineReports(stop=tuple(map(self.stopped, machines))), ready_s
        if batch.restore:
            restored = zip(machines, batch.restore, strict=True)
            reports = tuple(self.restored(machine, order) for machine, order in restored)
            return MachineReports(restore=reports), now_s + self.restore_s(batch.restore[0])
        if batch.start:
            started = zip(machines, batch.start, strict=True)
            reports_of_start = tuple(self.started(machine, order) for machine, order in started)
            return MachineReports(start=reports_of_start), now_s + self.start_s(batch.start[0])
        if batch.check:
            checked = zip(machines, batch.check, strict=True)
            results = tuple(self.checked(machine, order) for machine, order in checked)
            return MachineReports(check=results), now_s + self.check_s(batch.check[0])
        if batch.prepare:
            code = batch.prepare[0]
            prepared = tuple(self.prepared(machine, code) for machine in machines)
            return MachineReports(prepare=prepared), now_s
        if batch.trace:
            traced = tuple(self.traced(machine, batch.trace[0], now_s) for machine in machines)
            return MachineReports(trace=traced), self.looked_s(now_s)
        replayed = zip(machines, batch.replay, strict=True)
        of_replay = tuple(self.replayed(machine, order) for machine, order in replayed)
        return MachineReports(replay=of_replay), self.replayed_s(now_s)

    # --- Stop and start ---------------------------------------------------------------------------

    def stop(self, order: StopOrder, now_s: float) -> float:
        """End all ranks; when that is done."""
        self._world.stop()
        # Another incident may begin with the same hang, and look anew.
        self._series.pop("look", None)
        if order.attempt not in self._stopped:
            takes_s = self._world.restart_s("stop", self._times.stop, order.attempt)
            self._stopped[order.attempt] = now_s + takes_s
        return max(now_s, self._stopped[order.attempt])

    def stopped(self, machine: str) -> MachineReport:
        """How a machine's ranks ended, and what its memory holds."""
        world, layout = self._world, self._world.setting.layout
        step, slot = world.kept_step(), world.place_of(machine)
        if slot is None or step == 0:
            return MachineReport(machine, (), (), ())
        own = tuple(layout.ranks_of(slot))
        held = world.setting.backup.held_by(layout, slot)
        copies = tuple([_copy(rank, step) for rank in (*own, *held)])
        return MachineReport(machine, (), own, copies)

    def restore_s(self, order: RestoreOrder) -> float:
        """How long fetching takes."""
        if order.stored is not None:
            return self._world.takes_s("storage", self._times.restore_from_storage)
        return self._world.restart_s("restore", self._times.restore, order.attempt - 1)

    def restored(self, machine: str, order: RestoreOrder) -> RestoreReport:
        """Everything arrives whole."""
        return RestoreReport(machine, tuple(pull.rank for pull in order.pulls), ())

    def start_s(self, order: StartOrder) -> float:
        """How long a start takes."""
        return self._world.restart_s("start", self._times.start, order.attempt - 1)

    def started(self, machine: str, order: StartOrder) -> StartReport:
        """A machine has been ordered to start."""
        self._ordered.setdefault(order.attempt, {})[order.slot] = machine
        return StartReport(machine, (1,) * len(order.ranks), True)

    def prepared(self, machine: str, order: PrepareOrder) -> PrepareReport:
        """All code can run."""
        return PrepareReport(machine, order.directory.removeprefix(CODE))

    # --- Tests ------------------------------------------------------------------------------------

    def check_s(self, order: CheckOrder) -> float:
        """How long a test takes."""
        return self._world.check_s(order.check, order.number)

    def checked(self, machine: str, order: CheckOrder) -> CheckResult:
        """What a test finds on one machine."""
        meeting = [peer.machine for peer in order.peers] or [machine]
        bad = self._world.faulty(order.check, meeting)
        if order.check is Check.BITWISE:
            digest = "wrong" if bad else "right"
            return CheckResult(machine, order.check, Verdict.HEALTHY, "a digest", digest)
        verdict = Verdict.FAULTY if bad else Verdict.HEALTHY
        peers = tuple(peer for peer in meeting if peer != machine) if bad else ()
        return CheckResult(machine, order.check, verdict, f"simulated: {verdict}", peers=peers)

    def looked_s(self, now_s: float) -> float:
        """When all have said where their ranks stand."""
        return self._in_series("look", self._times.look, now_s)

    def traced(self, machine: str, order: TraceOrder, now_s: float) -> TraceReport:
        """Where a machine's ranks stand lies nowhere: the judge is simulated, too."""
        return TraceReport(machine, order.attempt or 0, now_s, showing.EVIDENCE, (), "simulated")

    def replayed_s(self, now_s: float) -> float:
        """When a round of replay is over."""
        return self._in_series("replay", self._times.replay_round, now_s)

    def replayed(self, machine: str, order: ReplayOrder) -> ReplayReport:
        """How a trial goes on one machine."""
        group = [info.machine for info in order.machines]
        fails = self._world.fails_everywhere() or bool(self._world.faulty(REPLAY, group))
        verdict = Verdict.FAULTY if fails else Verdict.HEALTHY
        return ReplayReport(machine, verdict, f"simulated: {verdict}")

    def _in_series(self, purpose: str, spread: Spread, now_s: float) -> float:
        """When one of several things of a kind is over, that are done one after the other."""
        number, ready_s = self._series.get(purpose, (-1, -1.0))
        if now_s >= ready_s:
            number += 1
            ready_s = now_s + self._world.takes_s(purpose, spread, number)
            self._series[purpose] = number, ready_s
        return ready_s

    @property
    def _num_machines(self) -> int:
        return self._world.setting.layout.num_machines
