"""The simulated cluster as the real workflows see it: every activity, answered from the model.

One object plays all agents, the analyzer, the scheduler, the archive, and persons. It has no clock
but the server's, by which activities are told when they were scheduled and when they began. An
order that takes time sleeps, and time passes meanwhile. What ends by a time-out, or when its
workflow hears that it ends, is tried again when it is done: the server passes over the time until
then, as nothing runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from everstep.core.hang import JudgedStacks
from everstep.core.model import Alert, MachineInfo, StepSeen
from everstep.core.orders import (
    CheckOrder,
    CheckResult,
    MachineReport,
    PrepareOrder,
    PrepareReport,
    RestoreOrder,
    RestoreReport,
    StartOrder,
    StartReport,
    StopOrder,
    StorageReport,
    StoredCheckpoint,
    TraceOrder,
    TraceReport,
)
from everstep.core.record import IncidentRecord
from everstep.core.simulation import showing
from everstep.core.simulation.faults import DAY_S, Shows
from everstep.core.simulation.world import Attempt, Strike, World
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.core.vocabulary import Outcome
from everstep.workers.simulation.fate import CLOSE_S, Fate
from everstep.workers.simulation.machines import CODE, Machines, info_of
from everstep.workers.simulation.redirect import ANSWER_BATCH, REPORTS, as_payload
from everstep.workers.simulation.silent import Unshown
from everstep.workflows.batches import MachineOrders
from everstep.workflows.effects import AwaitStep, Evicted, EvictOrder, JudgeOrder, PageOrder
from everstep.workflows.messages import Approval, UpdateRequest
from everstep.workflows.ports import (
    AnalysisPort,
    ArchivePort,
    CheckPort,
    ClusterPort,
    MachinePort,
    NotifyPort,
    StackPort,
    TracePort,
)

NEVER_S = 30 * DAY_S
"""When to ask again for a step that will not be made: whoever waits gives up before."""

MOST_DELAY_S = 0.3
"""Real time after an answer within which a controller is killed that is to be."""

CALM_S = 1.0
"""This long after an incident's end it has said so to all: time stands still while it does."""

MISSING = "missing for slot"
"""How an incident says that it waits for a machine, and for no person."""


@dataclass
class Signals:
    """How what happens reaches the workflows, as long as they are on one server.

    Attributes:
        begin: Starts the job, or goes on with it, where the last server left it.
        alerts: To the job.
        update: A person's wish, to the job.
        joined: A machine, to the job.
        approve: A person's word, to the incident of this number.
        closed: To whoever keeps the server's time: the incident of this number ends.
        outlived: To the same: an order is done that its workflow, of this id, may have given up.
        leave: Takes the job from its server; whether it could be had.
        kill: Kills a controller.
    """

    begin: Callable[[], Awaitable[None]]
    alerts: Callable[[list[Alert]], Awaitable[None]]
    update: Callable[[UpdateRequest], Awaitable[None]]
    joined: Callable[[MachineInfo], Awaitable[None]]
    approve: Callable[[int, Approval], Awaitable[None]]
    closed: Callable[[int], None]
    outlived: Callable[[str], Awaitable[None]]
    leave: Callable[[], Awaitable[bool]]
    kill: Callable[[], None]


class SimulatedCluster(
    MachinePort,
    CheckPort,
    TracePort,
    StackPort,
    Unshown,
    ClusterPort,
    AnalysisPort,
    ArchivePort,
    NotifyPort,
):
    """All that the workflows of one job talk to. Nothing here beats: nothing here waits.

    Args:
        world: The model.
        fate: What happens by itself.
    """

    _signals: Signals

    def __init__(self, world: World, fate: Fate) -> None:
        self.world = world
        self._fate = fate
        self.records: dict[int, IncidentRecord] = {}
        self.missed: set[int] = set()
        self.kills = 0
        self._leaves_after = 0
        self._left_at_s = 0.0
        self._disturbed: list[int] = []
        self._machines = Machines(world)
        self._evicted: set[tuple[str, int]] = set()
        self._asked: set[tuple[int, int]] = set()
        self._closed: set[int] = set()
        self._ending = set[str]()

    def activities(self) -> list[Callable[..., Any]]:
        """All of them, for a worker."""
        return [
            self.answer, self.stop, self.restore, self.look_at_storage, self.start,
            self.prepare, self.check, self.replay, self.trace, self.judge, self.await_step,
            self.evict, self.save_incident, self.page,
        ]  # fmt: skip

    async def move(self, signals: Signals, incidents: int) -> None:
        """From now on the workflows are on another server, or on the first one.

        Args:
            signals: How what happens reaches them there.
            incidents: After so many closed ones the job leaves it, as soon as it trains.
        """
        self._signals = signals
        self._leaves_after = len(self._closed) + incidents
        # Before anything else that is due at that moment.
        await self._fate.at(self._left_at_s, signals.begin, order=-1)

    def disturb(self, times: int, faults: int) -> None:
        """Kill controllers in the middle of incidents, spread over the whole run.

        Args:
            times: How often.
            faults: How many are to be expected.
        """
        self._disturbed = [1 + number * faults // max(1, times) for number in range(times)]

    # --- What happens -----------------------------------------------------------------------------

    async def _leave(self, at_s: float, attempt: Attempt | None) -> None:
        """Leave the server, unless the next incident has begun: what strikes has been noticed."""
        world = self.world
        if world.attempt is not attempt or world.strike in world.struck[-1:]:
            return
        if await self._signals.leave():
            self._left_at_s = at_s
            await self._fate.leave()

    async def _notice(self, strike: Strike) -> None:
        self.world.notice()
        self._machines.noticed()
        if strike.trouble.fault.shows is Shows.WISH:
            directory = f"{CODE}{self.world.wished_version}"
            await self._signals.update(UpdateRequest("simulated", directory, urgent=True))
        else:
            await self._signals.alerts(showing.alerts(self.world, strike, self._fate.from_s))

    # --- Orders to machines -----------------------------------------------------------------------

    @activity.defn(name=ANSWER_BATCH)
    async def answer(self, batch: RawValue) -> RawValue:
        """Carry out the orders of a batch; done when all of its machines have answered.

        Effect: the model's ranks stop or start.
        Idempotent by: attempt and machine, as with real machines.
        Heartbeats: no.
        Gives up when: never.
        """
        orders = activity.payload_converter().from_payload(batch.payload, MachineOrders)
        self._disturb()
        reports, ready_s = self._machines.answer(orders, self._ordered_s())
        if orders.start:
            await self._begin(orders.start[0], ready_s)
        answer = as_payload(REPORTS, reports)
        await self._until(ready_s)
        return answer

    def _disturb(self) -> None:
        """Kill a controller where that is due, in the middle of what an answer leads to."""
        if len(self.world.struck) not in self._disturbed:
            return
        self._disturbed.remove(len(self.world.struck))
        after_s = MOST_DELAY_S * (len(self._disturbed) % 10) / 10
        asyncio.get_running_loop().call_later(after_s, self._kill)

    def _kill(self) -> None:
        self.kills += 1
        self._signals.kill()

    async def _begin(self, order: StartOrder, at_s: float) -> None:
        """When the last machine has been ordered, it is known how the attempt will fail."""
        if not self._machines.begins(order.attempt):
            return
        self._machines.begin(order, at_s)
        strike = self.world.strike
        if strike is not None:
            await self._fate.at(strike.alert_at_s, lambda: self._notice(strike))

    @activity.defn(name="machine.stop")
    async def stop(self, order: StopOrder) -> MachineReport:
        """As `answer`, for one machine."""
        self._disturb()
        await self._until(self._machines.stop(order, self._ordered_s()))
        return self._machines.stopped(_machine())

    @activity.defn(name="machine.restore")
    async def restore(self, order: RestoreOrder) -> RestoreReport:
        """As `answer`, for one machine."""
        await self._until(self._ordered_s() + self._machines.restore_s(order))
        return self._machines.restored(_machine(), order)

    @activity.defn(name="machine.look_at_storage")
    async def look_at_storage(self) -> StorageReport:
        """See what the model has saved; takes no time."""
        # Who looks has stopped all ranks, but where no machine was left to be told.
        self.world.stop()
        step, setting = self.world.stored_step, self.world.setting
        layout = setting.layout
        if not step:
            return StorageReport(_machine(), ())
        sizes = ",".join(f"{kind}={layout.sizes[kind]}" for kind in layout.order)
        text = f"{sizes};order={'-'.join(layout.order)}"
        stored = StoredCheckpoint(f"step-{step}", step, 1, "simulated", 0.0, text, 1)
        return StorageReport(_machine(), (stored,))

    @activity.defn(name="machine.start")
    async def start(self, order: StartOrder) -> StartReport:
        """As `answer`, for one machine."""
        self._disturb()
        report = self._machines.started(_machine(), order)
        ready_s = self._ordered_s() + self._machines.start_s(order)
        await self._begin(order, ready_s)
        await self._until(ready_s)
        return report

    @activity.defn(name="machine.prepare")
    async def prepare(self, order: PrepareOrder) -> PrepareReport:
        """As `answer`, for one machine."""
        return self._machines.prepared(_machine(), order)

    @activity.defn(name="machine.check")
    async def check(self, order: CheckOrder) -> CheckResult:
        """As `answer`, for one machine."""
        await self._until(self._ordered_s() + self._machines.check_s(order))
        return self._machines.checked(_machine(), order)

    @activity.defn(name="machine.replay")
    async def replay(self, order: ReplayOrder) -> ReplayReport:
        """As `answer`, for one machine; tried again when it is done."""
        self._unless_past(self._machines.replayed_s(self._ordered_s()))
        return self._machines.replayed(_machine(), order)

    @activity.defn(name="machine.trace")
    async def trace(self, order: TraceOrder) -> TraceReport:
        """As `answer`, for one machine."""
        await self._until(self._machines.looked_s(self._ordered_s()))
        return self._machines.traced(_machine(), order, self._now_s())

    # --- Everything else --------------------------------------------------------------------------

    @activity.defn(name="stacks.judge")
    async def judge(self, order: JudgeOrder) -> JudgedStacks:
        """Say what the stacks would come to."""
        return showing.judged(self.world)

    @activity.defn(name="analysis.await_step")
    async def await_step(self, wanted: AwaitStep) -> StepSeen:
        """Wait for a step, by being tried again when it is there.

        Effect: none.
        Idempotent by: only asking.
        Heartbeats: no.
        Gives up when: the caller's time-out ends.
        """
        at_s = self.world.time_of(wanted.step)
        self._unless_past(self._now_s() + NEVER_S if at_s is None else at_s)
        return StepSeen(wanted.attempt, wanted.step, (at_s or 0.0) + self._fate.from_s)

    @activity.defn(name="cluster.evict")
    async def evict(self, order: EvictOrder) -> Evicted | None:
        """Take a machine out; another one will join.

        Effect: a machine is on its way.
        Idempotent by: machine and incident.
        Heartbeats: no.
        Gives up when: never.
        """
        key = order.machine.machine, order.incident
        if key in self._evicted:
            return Evicted()
        self._evicted.add(key)
        name, after_s = self.world.replacement(order.machine.machine)
        joins_s = self._ordered_s() + after_s
        info = info_of(name, joins_s + self._fate.from_s)
        await self._fate.at(joins_s, lambda: self._signals.joined(info), _order())
        return Evicted()

    @activity.defn(name="archive.save_incident")
    async def save_incident(self, record: IncidentRecord) -> None:
        """Keep the record; a held one calls a person.

        Effect: the record is kept, and a person is on the way.
        Idempotent by: the incident, and how far it has climbed.
        Heartbeats: no.
        Gives up when: never.
        """
        self.records[record.incident] = record
        if record.closed_at_s is not None:
            self._ending.add(_workflow())
        if record.outcome is Outcome.RECOVERED and record.closed_at_s is not None:
            await self._close(record.incident, record.fault_at_s - self._fate.from_s)
        key = record.incident, len(record.marks)
        if record.outcome is not Outcome.HELD or MISSING in record.missing or key in self._asked:
            return
        self._asked.add(key)
        person = self.world.setting.durations.person
        answers_s = self._now_s() + self.world.takes_s("person", person)
        await self._fate.at(answers_s, lambda: self._answer(record.incident))

    async def _close(self, incident: int, noticed_s: float) -> None:
        if incident in self._closed:
            return
        self._closed.add(incident)
        if self.world.is_in_job(self.world.strike_at(noticed_s).trouble):
            self.missed.add(incident)
        self._signals.closed(incident)
        if len(self._closed) >= self._leaves_after:
            calm_s, attempt = self._now_s() + CALM_S, self.world.attempt
            await self._fate.at(calm_s, lambda: self._leave(calm_s, attempt))

    async def _answer(self, incident: int) -> None:
        """A person has mended it, and lets the incident go on."""
        self.world.mend()
        await self._signals.approve(incident, Approval("simulated"))

    @activity.defn(name="notify.page")
    async def page(self, order: PageOrder) -> None:
        """Nobody is called but by what holds the incident."""

    # --- Time -------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        self._fate.moved()
        return _of(activity.info().started_time) - self._fate.from_s

    def _ordered_s(self) -> float:
        """When the order was given, however often it is tried."""
        self._fate.moved()
        return _of(activity.info().scheduled_time) - self._fate.from_s

    async def _until(self, ready_s: float) -> None:
        left_s = ready_s - self._now_s()
        if left_s <= CLOSE_S:
            return
        await self._fate.sleep(left_s)
        if _workflow() in self._ending:
            await self._signals.outlived(_workflow())

    def _unless_past(self, ready_s: float) -> None:
        left_s = ready_s - self._now_s()
        if left_s > CLOSE_S:
            delay = timedelta(seconds=left_s)
            raise ApplicationError(
                "not yet",
                type="NotYet",
                next_retry_delay=delay,
                category=ApplicationErrorCategory.BENIGN,
            )


def _machine() -> str:
    """Whose order it is, as `redirect` tells."""
    return activity.info().activity_id.partition("/")[0]


def _workflow() -> str:
    """Id of the workflow whose order it is."""
    return activity.info().workflow_id or ""


def _order() -> int:
    """The how manieth order of its workflow it is."""
    return int(activity.info().activity_id.partition("/")[2])


def _of(moment: datetime) -> float:
    return moment.timestamp()
