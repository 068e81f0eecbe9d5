"""One machine of a job: serves its orders, watches its ranks, holds its checkpoint memory.

No Temporal here: the worker around it turns activities into orders and events into signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from everstep.agent.attempt import Attempt, Surroundings
from everstep.agent.borrowing import Borrowing
from everstep.agent.checks.checker import Checker
from everstep.agent.config import MachineConfig
from everstep.agent.journal import Journal
from everstep.agent.launcher import Launcher
from everstep.agent.memory import OomKills, counters
from everstep.agent.nursery import Readiness
from everstep.agent.probes.stacks import Asking, executable_beside_us
from everstep.agent.replaying import Replaying
from everstep.agent.shards import ShardStore
from everstep.agent.storage import StorageConfig, StorageTier
from everstep.agent.tracer import Target, trace
from everstep.agent.transfer.asking import pull
from everstep.agent.transfer.sender import BackupSender
from everstep.agent.transfer.server import TransferServer
from everstep.agent.versions import Versions
from everstep.agent.witness import stacks_file
from everstep.core.errors import (
    EverstepError,
    PermanentError,
    StaleAttempt,
    TransientError,
    UnobservableError,
)
from everstep.core.groups import layout_of
from everstep.core.model import Alert, MachineEvent, MachineInfo
from everstep.core.orders import (
    CheckOrder,
    CheckResult,
    MachineReport,
    PrepareOrder,
    PrepareReport,
    Pull,
    RestoreOrder,
    RestoreReport,
    ShardCopy,
    StartOrder,
    StartReport,
    StopOrder,
    StorageReport,
    TraceOrder,
)
from everstep.core.parts import Replicated
from everstep.core.shard import Origin
from everstep.core.stacks.dump import RankTrace
from everstep.core.trial import ReplayOrder, ReplayReport

__all__ = ["Machine", "MachineConfig"]

logger = logging.getLogger(__name__)

# All ranks of a job may be waiting for a store that is not there yet.
_BACKLOG = 4096

_Report = TypeVar("_Report")
_Test = TypeVar("_Test", CheckOrder, ReplayOrder)
_Runs = TypeVar("_Runs", StartOrder, ReplayOrder)
_Result = TypeVar("_Result", CheckResult, ReplayReport)


class Machine:
    """Serves the orders of one machine, one at a time, each safe to be given twice.

    An order that was begun is finished, even if its caller is cancelled. To be used in one event
    loop; all that blocks runs in threads.

    Args:
        config: The machine's part in the job.
        on_event: Called in the event loop with what the outside should know.
    """

    def __init__(self, config: MachineConfig, on_event: Callable[[MachineEvent], None]) -> None:
        self._config = config
        self._on_event = on_event
        self._one_order = asyncio.Lock()
        origin = Origin(config.job, config.parallelism)
        self._store = ShardStore(config.machine, origin=origin)
        self._sender = BackupSender(
            self._store, config.secret, config.job, config.backup_bytes_per_s
        )
        self._borrowing = Borrowing(self._store, config.secret, config.job, _replicated(config))
        self._launcher = Launcher(config)
        self._versions = Versions(config)
        self._tier: StorageTier | None = None
        self._running: Attempt | None = None
        # The newest attempt that was started or stopped here, and which of the two it was.
        self._attempt = -1
        self._closed = False
        self._started: StartReport | None = None
        self._stopped: MachineReport | None = None
        # The newest test, so that a second call for it does not test again.
        self._last_test: tuple[Any, Any] | None = None
        # A test that any other order ends.
        self._yielding: asyncio.Future[Any] | None = None

    async def open(self) -> MachineInfo:
        """Begin to serve: end what an earlier agent left behind, listen, start to pre-warm.

        Raises:
            OSError: The directory cannot be written, or the host's address not be listened on.
            TransientError: Something that an earlier agent left behind does not die.
        """
        info = await asyncio.to_thread(self._open)
        loop = asyncio.get_running_loop()
        self._tier = self._storage_tier(loop)
        self._around = Surroundings(
            self._config,
            loop,
            self._launcher,
            self._journal,
            self._store,
            self._sender,
            self._borrowing,
            self._rendezvous,
            OomKills(counters(self._config.cgroup)),
            self._on_event,
            self._tier,
        )
        self._on_event(info)
        return info

    @property
    def memory_bytes(self) -> int:
        """Memory that checkpoints take here, own and held ones."""
        return self._store.memory_bytes

    def backup_lags(self) -> dict[int, int]:
        """How many steps the backup of each rank that runs here is behind."""
        return {} if self._running is None else self._running.backup_lags()

    async def stop(self, order: StopOrder) -> MachineReport:
        """End every rank and all that it started; a second time, the first report.

        Raises:
            StaleAttempt: A newer attempt runs here.
            TransientError: A process does not die.
        """
        return await self._serve(self._stop(order))

    async def restore(self, order: RestoreOrder) -> RestoreReport:
        """Fetch shards that are not here; a second time, only those still missing.

        Raises:
            StaleAttempt: The attempt runs here already, or a newer one does.
            TransientError: A process of an older attempt does not die.
        """
        return await self._serve(self._restore(order))

    async def start(self, order: StartOrder) -> StartReport:
        """Start the ranks of one slot; a second time, the first report.

        Raises:
            StaleAttempt: A newer attempt runs here, or this one was stopped.
            PermanentError: The code cannot be made ready here.
            TransientError: Not all ranks could be started, and so none runs.
        """
        if order.attempt > self._attempt:
            # Imports may take long, and a stop order must not have to wait for them.
            await asyncio.to_thread(self._launcher.wait_ready)
        return await self._serve(self._start(await self._placed(order)))

    async def trace(self, order: TraceOrder) -> tuple[int, dict[int, RankTrace]]:
        """Ask every rank and its children where they stand; changes nothing, so may be repeated.

        Does not wait for other orders: one that hangs is a reason to ask.

        Returns:
            The attempt, and what each rank said; one that ended is said to be gone.

        Raises:
            UnobservableError: No rank was started here.
            StaleAttempt: Another attempt runs here than the one that is meant.
        """
        running = self._running
        if running is None:
            raise UnobservableError(f"no rank was started on {self._config.machine}")
        if order.attempt not in (None, running.number):
            raise StaleAttempt(order.attempt or 0, running.number)
        targets = {
            rank: Target(pid, stacks_file(self._config, running.number, rank))
            for rank, pid in running.pids.items()
        }
        how = Asking(
            program=(executable_beside_us("py-spy"),),
            deadline_s=order.deadline_s,
            native=order.native,
            nonblocking=order.nonblocking,
        )
        return running.number, await trace(targets, how)

    async def prepare(self, order: PrepareOrder) -> PrepareReport:
        """Whether a code version can run here; waits for no other order, and stops nothing."""
        return await asyncio.to_thread(self._versions.prepare, order)

    async def look_at_storage(self) -> StorageReport:
        """What the storage tier shows from here; does not wait for other orders.

        Raises:
            PermanentError: The job has no storage tier.
        """
        if self._tier is None:
            raise PermanentError(f"machine {self._config.machine} has no storage tier")
        return await asyncio.to_thread(self._tier.look)

    async def check(self, order: CheckOrder) -> CheckResult:
        """Check this machine while no ranks run; a second time, the first result.

        Other than for other orders, whoever is cancelled here ends the check and all its programs.

        Raises:
            StaleAttempt: A newer attempt runs here.
            PermanentError: The attempt's ranks still run, or the order is not for this machine, or
                it yields and another order came.
            TransientError: A process of an older attempt does not die.
        """
        checker = Checker(self._config, self._launcher, self._rendezvous)
        return await self._test(order, order.check, checker.check, order.yields)

    async def replay(self, order: ReplayOrder) -> ReplayReport:
        """Run the job made small as one machine of a group; a second time, the first report.

        As for `check`, whoever is cancelled here ends it. What memory holds stays as it is.

        Raises:
            StaleAttempt, PermanentError, TransientError: As for `check`.
        """
        order = await self._placed(order)
        return await self._test(order, "replay", Replaying(self._around).replay)

    async def close(self) -> None:
        """End everything on this machine; a second time changes nothing.

        Raises:
            TransientError: A process does not die.
        """
        self._end_yielding_test()
        async with self._one_order:
            try:
                await self._end_ranks()
            finally:
                await asyncio.to_thread(self._close)

    async def _serve(self, serving: Coroutine[Any, Any, _Report]) -> _Report:
        async def alone() -> _Report:
            self._end_yielding_test()
            async with self._one_order:
                return await serving

        task = asyncio.ensure_future(alone())
        # Nobody may be left to hear of a failure.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    def _open(self) -> MachineInfo:
        config = self._config
        config.directory.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(config.directory / "journal.jsonl")
        self._launcher.kill()
        self._rendezvous = socket.create_server((config.host, 0), backlog=_BACKLOG)
        self._transfer = TransferServer(config.host, self._store, config.secret, config.job)
        self._launcher.warm()
        info = MachineInfo(
            machine=config.machine,
            host=config.host,
            transfer_port=self._transfer.port,
            rendezvous_port=self._rendezvous.getsockname()[1],
            agent_pid=os.getpid(),
            joined_at_s=time.time(),
            pod=config.pod,
            pod_uid=config.pod_uid,
        )
        self._journal.write("ready", agent_pid=info.agent_pid)
        return info

    def _storage_tier(self, loop: asyncio.AbstractEventLoop) -> StorageTier | None:
        config = self._config
        if config.storage is None:
            return None

        def on_alert(alert: Alert) -> None:
            # The loop may be gone while the machine is torn down.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_event, alert)

        return StorageTier(
            StorageConfig(
                config.storage,
                config.machine,
                config.job,
                config.parallelism,
                config.gpus_per_machine,
                config.directory / "storage.log",
            ),
            on_alert,
        )

    def _close(self) -> None:
        if self._closed:
            return
        if self._tier is not None:
            self._tier.close()
        self._launcher.close()
        self._sender.close()
        self._transfer.close()
        self._rendezvous.close()
        self._journal.write("closed")
        self._journal.close()
        self._closed = True

    async def _stop(self, order: StopOrder) -> MachineReport:
        if order.attempt < self._attempt:
            raise StaleAttempt(order.attempt, self._attempt)
        if order.attempt == self._attempt and self._stopped is not None:
            return self._stopped
        await self._end_ranks()
        running = self._running
        report = MachineReport(
            machine=self._config.machine,
            exits=() if running is None else running.exits,
            stopped=() if running is None else running.stopped,
            copies=await asyncio.to_thread(self._freeze_memory, order.attempt + 1),
        )
        await self._note("stopped", attempt=order.attempt, ranks=report.stopped)
        self._attempt, self._started, self._stopped = order.attempt, None, report
        return report

    def _freeze_memory(self, attempt: int) -> tuple[ShardCopy, ...]:
        # A backup that is still on its way would push out a step that is in the report.
        self._store.advance(attempt)
        return self._store.copies()

    async def _restore(self, order: RestoreOrder) -> RestoreReport:
        if order.attempt <= self._attempt:
            raise StaleAttempt(order.attempt, self._attempt)
        await self._end_ranks()
        self._store.advance(order.attempt)
        outcomes = await asyncio.gather(
            *(asyncio.to_thread(self._pull, item, order.step) for item in order.pulls)
        )
        outcomes += await self._bring_back(order)
        borrowed = await self._borrow(order)
        failed = tuple((rank, reason) for rank, reason in [*outcomes, *borrowed] if reason)
        pulled = tuple(rank for rank, reason in outcomes if not reason)
        await self._note(
            "restored",
            attempt=order.attempt,
            pulled=pulled,
            failed=failed,
            borrowed=self._borrowing.ranks,
        )
        return RestoreReport(self._config.machine, pulled, failed)

    async def _borrow(self, order: RestoreOrder) -> list[tuple[int, str]]:
        fetched = await asyncio.gather(
            *(asyncio.to_thread(self._borrowing.fetch, loan, order.step) for loan in order.loans)
        )
        return [outcome for of_loan in fetched for outcome in of_loan]

    async def _bring_back(self, order: RestoreOrder) -> list[tuple[int, str]]:
        share = order.stored
        if share is None:
            return []
        if self._tier is None:
            return [(rank, "this machine has no storage tier") for rank in share.ranks or (-1,)]
        return await asyncio.to_thread(
            self._tier.bring_back, share, order.step, order.attempt, self._store, self._borrowing
        )

    def _pull(self, item: Pull, step: int) -> tuple[int, str]:
        try:
            pull(item, step, self._store, self._config.secret, self._config.job)
        except EverstepError as error:
            return item.rank, str(error)
        return item.rank, ""

    async def _start(self, order: StartOrder) -> StartReport:
        if order.attempt == self._attempt and self._started is not None:
            return self._started
        if order.attempt <= self._attempt:
            raise StaleAttempt(order.attempt, self._attempt)
        await self._end_ranks()
        readiness = await asyncio.to_thread(self._prepare, order)
        self._running = Attempt(order, self._around)
        try:
            pids = await asyncio.to_thread(self._running.launch)
        except (EverstepError, OSError) as error:
            await self._end_ranks()
            raise TransientError(f"attempt {order.attempt} did not start: {error}") from error
        report = StartReport(self._config.machine, pids, readiness.prewarmed)
        self._attempt, self._started, self._stopped = order.attempt, report, None
        return report

    async def _test(
        self,
        order: _Test,
        name: str,
        perform: Callable[[_Test], Coroutine[Any, Any, _Result]],
        yields: bool = False,
    ) -> _Result:
        """Perform a test that ends when its caller is cancelled, and else lasts if it may."""

        async def alone() -> _Result:
            async with self._one_order:
                return await self._tested(order, name, perform)

        self._end_yielding_test()
        task = asyncio.ensure_future(alone())
        if yields:
            self._yielding = task
        try:
            await asyncio.wait([task])
            if task.cancelled():
                raise PermanentError(f"the {name} test gave way to another order")
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _end_yielding_test(self) -> None:
        if self._yielding is not None:
            self._yielding.cancel()
            self._yielding = None

    async def _tested(
        self, order: _Test, name: str, perform: Callable[[_Test], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        if self._last_test is not None and self._last_test[0] == order:
            known: _Result = self._last_test[1]
            return known
        if order.attempt < self._attempt:
            raise StaleAttempt(order.attempt, self._attempt)
        if order.attempt == self._attempt and self._started is not None:
            raise PermanentError(f"ranks of attempt {order.attempt} run here: stop them first")
        await self._end_ranks()
        result = await perform(order)
        outcome = {"verdict": result.verdict, "detail": result.detail, "took_s": result.took_s}
        attempt, number = order.attempt, order.number
        await self._note("tested", attempt=attempt, number=number, test=name, **outcome)
        self._last_test = order, result
        return result

    async def _placed(self, order: _Runs) -> _Runs:
        """The order with the folder in which its code runs here; it was made ready before."""
        where = await asyncio.to_thread(self._versions.place, order.code_directory)
        return replace(order, code_directory=where)

    def _prepare(self, order: StartOrder) -> Readiness:
        self._store.advance(order.attempt)
        self._store.discard_after(order.restore_step)
        ranks = [start.rank for start in order.ranks]
        self._store.keep_only(ranks, order.held_ranks)
        self._borrowing.begin(ranks, order.restore_step)
        readiness = self._launcher.wait_ready()
        for note in readiness.notes:
            logger.warning("pre-warming: %s", note)
        self._journal.write("prewarmed", prewarmed=readiness.prewarmed, notes=readiness.notes)
        return readiness

    async def _end_ranks(self) -> None:
        if self._running is not None:
            await self._running.end()

    async def _note(self, effect: str, **fields: Any) -> None:
        await asyncio.to_thread(self._journal.write, effect, **fields)


def _replicated(config: MachineConfig) -> Replicated:
    layout = layout_of(config.parallelism, config.gpus_per_machine)
    return Replicated(config.replicated, layout.dp, layout.strides.get("dp", 1))
