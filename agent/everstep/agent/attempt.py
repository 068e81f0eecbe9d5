"""One attempt's ranks on one machine: started, watched, and in the end all gone.

Belongs to the event loop, apart from `launch`, which blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.agent.borrowing import Borrowing
from everstep.agent.channel import RankChannel
from everstep.agent.config import MachineConfig
from everstep.agent.journal import Journal
from everstep.agent.launcher import Launcher, last_lines
from everstep.agent.logtimes import LogTimes
from everstep.agent.memory import OomKills
from everstep.agent.nursery import Ended
from everstep.agent.process import main_thread_ran_s
from everstep.agent.rank_voice import RankVoice
from everstep.agent.shards import ShardStore
from everstep.agent.step_lines import StepLines
from everstep.agent.storage import StorageTier
from everstep.agent.transfer.sender import BackupSender
from everstep.agent.witness import recorder_pipe, stacks_file
from everstep.core.errors import TransientError
from everstep.core.model import CopyDamaged, MachineEvent, RankExit, RanksFinished, RanksStarted
from everstep.core.orders import RankStart, StartOrder

logger = logging.getLogger(__name__)

_DRAIN_PATIENCE_S = 0.01
_DEATH_PATIENCE_S = 10.0
_READ_LOGS_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all attempts on a machine share.

    Attributes:
        config: The machine's part in the job.
        loop: The event loop.
        launcher: Starts and kills processes.
        journal: Where effects are written.
        store: Where shards lie.
        sender: Sends backups.
        borrowing: Has what ranks need of others to restore.
        rendezvous: Listening socket for the store of each attempt.
        oom_kills: Counts the kernel's kills for memory among the ranks.
        on_event: Called in the event loop with what the outside should know.
        tier: The storage tier, or None.
    """

    config: MachineConfig
    loop: asyncio.AbstractEventLoop
    launcher: Launcher
    journal: Journal
    store: ShardStore
    sender: BackupSender
    borrowing: Borrowing
    rendezvous: socket.socket
    oom_kills: OomKills
    on_event: Callable[[MachineEvent], None]
    tier: StorageTier | None


@dataclass(frozen=True, slots=True)
class Variant:
    """What is other about ranks that do not train.

    Attributes:
        name: Of their folder, and of what the journal says of them.
        variables: Environment variables, which win over everything else.
    """

    name: str
    variables: Mapping[str, str]


@dataclass(slots=True)
class _Rank:
    log: Path
    channel: RankChannel
    voice: RankVoice
    pid: int | None = None
    replayed: list[str] = field(default_factory=list[str])
    exit: RankExit | None = None


class Attempt:
    """The ranks that one start order makes.

    Args:
        order: The order.
        around: What it works with.
        variant: What is other about them if they do not train.
    """

    def __init__(
        self, order: StartOrder, around: Surroundings, variant: Variant | None = None
    ) -> None:
        self._order = order
        self._around = around
        self._variant = variant
        name = f"attempt-{order.attempt}" if variant is None else variant.name
        self._directory = around.config.directory / name
        self._ranks: dict[int, _Rank] = {}
        self._alive: set[int] = set()
        self._fewer_alive = asyncio.Event()
        self._stopping = False
        self._over = False
        self._stopped: list[int] = []
        self._reports: set[asyncio.Task[None]] = set()
        self._times: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        # Closing waits for a channel's thread, which may wait for another machine.
        self._closers = ThreadPoolExecutor(max(1, 2 * len(order.ranks)), "channel-closer")

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ranks that ended by themselves, by time."""
        ended = [rank.exit for rank in self._ranks.values() if rank.exit is not None]
        return tuple(sorted(ended, key=lambda end: end.at_s))

    @property
    def stopped(self) -> tuple[int, ...]:
        """Ranks that were ended by an order, ascending."""
        return tuple(sorted(self._stopped))

    @property
    def number(self) -> int:
        """Which attempt it is."""
        return self._order.attempt

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the ranks that were started, the ended ones among them."""
        return {number: rank.pid for number, rank in self._ranks.items() if rank.pid is not None}

    def backup_lags(self) -> dict[int, int]:
        """How many steps each rank's backup is behind, of those that have a holder."""
        lags = {number: rank.channel.backup_lag_steps for number, rank in self._ranks.items()}
        return {number: steps for number, steps in lags.items() if steps is not None}

    def launch(self) -> tuple[int, ...]:
        """Start the ranks, and the rendezvous store if this is slot 0; blocks.

        Returns:
            Their process ids, in the order's order.

        Raises:
            TransientError, OSError: Not all could be started; those that were have to be ended.
        """
        order, around = self._order, self._around
        self._directory.mkdir(parents=True, exist_ok=True)
        if order.slot == 0:
            log = self._directory / "store.log"
            around.launcher.start_store(around.rendezvous, log, self._see_store_end)
        ranks = [start.rank for start in order.ranks]
        # Before any rank can speak: what they say is relative to the step that they start from.
        self._post(
            around.on_event,
            RanksStarted(
                around.config.machine, order.attempt, tuple(ranks), order.restore_step, time.time()
            ),
        )
        if around.tier is not None:
            around.tier.begin(order)
        pids = tuple(self._launch_rank(start) for start in order.ranks)
        self._post(self._time_logs)
        if around.config.step_pattern is not None:
            self._post(self._begin_reading)
        effect = "started" if self._variant is None else self._variant.name
        around.journal.write(effect, attempt=order.attempt, ranks=ranks, pids=pids)
        return pids

    @property
    def replayed(self) -> list[tuple[str, ...]]:
        """Digests of the states that each rank came to, in the order's order."""
        return [tuple(self._ranks[start.rank].replayed) for start in self._order.ranks]

    async def wait_until_over(self) -> None:
        """Wait until all ranks ended well by themselves, or one did not."""
        while self._alive and all(exit_.succeeded for exit_ in self.exits):
            self._fewer_alive.clear()
            await self._fewer_alive.wait()

    async def end(self) -> None:
        """Leave nothing of it running; whoever ended by himself is reported first.

        Raises:
            TransientError: Something does not die.
        """
        if self._over:
            return
        self._stopping = True
        await asyncio.to_thread(self._around.launcher.kill)
        try:
            async with asyncio.timeout(_DEATH_PATIENCE_S):
                while self._alive:
                    self._fewer_alive.clear()
                    await self._fewer_alive.wait()
                await asyncio.gather(*self._reports)
        except TimeoutError as error:
            raise TransientError(f"ranks {sorted(self._alive)} do not die") from error
        await asyncio.gather(*(self._hang_up(rank) for rank in self._ranks.values()))
        self._closers.shutdown(wait=False)
        watching = [task for task in (self._times, self._reading) if task is not None]
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        self._over = True

    def _time_logs(self) -> None:
        if not self._over:
            logs = [rank.log for rank in self._ranks.values()]
            self._times = asyncio.create_task(LogTimes(logs).run())

    def _launch_rank(self, start: RankStart) -> int:
        ours, theirs = socket.socketpair()
        log = self._directory / f"rank-{start.rank:05d}.log"
        voice = self._voice(start, log)
        rank = _Rank(log, self._channel(start, ours, voice), voice)
        # Before its end or its progress can be told.
        self._ranks[start.rank] = rank
        self._alive.add(start.rank)
        rank.channel.start()
        with theirs:
            try:
                rank.pid = self._around.launcher.start_rank(
                    self._order,
                    start,
                    theirs,
                    rank.log,
                    lambda ended: self._post(self._see_end, start.rank, ended),
                    {} if self._variant is None else self._variant.variables,
                )
                return rank.pid
            except BaseException:
                self._alive.discard(start.rank)
                raise

    def _voice(self, start: RankStart, log: Path) -> RankVoice:
        config, order = self._around.config, self._order
        pattern = config.step_pattern
        lines = None if pattern is None else StepLines(log, re.compile(pattern))
        place = (config.machine, order.attempt, start.rank)
        return RankVoice(
            *place,
            order.restore_step,
            lines,
            lambda: self._ran_s(start.rank),
            self._around.on_event,
        )

    def _ran_s(self, rank: int) -> float | None:
        pid = self._ranks[rank].pid
        return None if pid is None else main_thread_ran_s(pid)

    def _channel(self, start: RankStart, sock: socket.socket, voice: RankVoice) -> RankChannel:
        return RankChannel(
            start.rank,
            self._order.attempt,
            sock,
            self._around.store,
            self._around.sender,
            start.backup,
            self._order.restore_step,
            lambda _, step: self._post(voice.reached, step),
            self._around.config.backup_timeout_s,
            lambda rank, step, text: self._post(self._see_damage, rank, step, text),
            lambda _, word: self._post(voice.said, word),
            on_replayed=None if self._variant is None else self._see_replayed,
            tier=self._around.tier,
            stored=self._stored(),
            borrowing=self._around.borrowing,
        )

    def _stored(self) -> str:
        tier, name = self._around.tier, self._order.stored
        return tier.url_of(name) if name and tier is not None else ""

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        # The loop may be gone while a machine is torn down.
        with contextlib.suppress(RuntimeError):
            self._around.loop.call_soon_threadsafe(function, *arguments)

    def _see_store_end(self, ended: Ended) -> None:
        if not self._stopping:
            logger.warning("the store of attempt %d ended: %s", self._order.attempt, ended)

    def _begin_reading(self) -> None:
        self._reading = asyncio.ensure_future(self._read_logs())

    async def _read_logs(self) -> None:
        """Hear ranks out that do not use the library, for ever."""
        while True:
            for rank in self._ranks.values():
                rank.voice.read_log()
            await asyncio.sleep(_READ_LOGS_EVERY_S)

    def _see_replayed(self, rank: int, digest: str) -> None:
        # In the channel's thread, whose end is waited for before the rank's is told.
        self._ranks[rank].replayed.append(digest)

    def _see_damage(self, rank: int, step: int, text: str) -> None:
        machine = self._around.config.machine
        event = CopyDamaged(machine, self._order.attempt, rank, step, text, time.time())
        self._around.on_event(event)

    def _see_end(self, rank: int, ended: Ended) -> None:
        # With another signal or a status it got ahead of the order.
        if self._stopping and ended.signal == signal.SIGKILL:
            self._stopped.append(rank)
            self._ranks[rank].voice.ended()
            self._count_out(rank)
            return
        report = asyncio.ensure_future(self._report_end(rank, ended))
        self._reports.add(report)
        report.add_done_callback(self._reports.discard)

    async def _report_end(self, number: int, ended: Ended) -> None:
        rank = self._ranks[number]
        out_of_memory = ended.exit_code != 0 and self._around.oom_kills.claim()
        await self._hang_up(rank)
        rank.voice.ended()
        lines = await asyncio.to_thread(last_lines, rank.log)
        rank.exit = RankExit(
            rank=number,
            machine=self._around.config.machine,
            attempt=self._order.attempt,
            exit_code=ended.exit_code,
            signal=ended.signal,
            at_s=ended.at_s,
            step=rank.voice.step,
            last_lines=(*lines, ended.note) if ended.note else lines,
            oom_killed=out_of_memory and ended.signal == signal.SIGKILL,
        )
        if not rank.exit.succeeded:
            self._around.on_event(rank.exit)
        self._count_out(number)
        await asyncio.to_thread(
            self._around.journal.write,
            "exited",
            attempt=self._order.attempt,
            rank=number,
            exit_code=ended.exit_code,
            signal=ended.signal,
        )

    def _count_out(self, rank: int) -> None:
        # Who reads the folder later, a file after the other, would wait at a pipe for ever.
        stacks = stacks_file(self._around.config, self._order.attempt, rank)
        with contextlib.suppress(OSError):
            recorder_pipe(stacks).unlink()
        self._alive.discard(rank)
        self._fewer_alive.set()
        exits = self.exits
        if len(exits) == len(self._order.ranks) and all(end.succeeded for end in exits):
            machine = self._around.config.machine
            finished = RanksFinished(machine, self._order.attempt, exits[-1].at_s)
            if self._around.tier is None:
                self._around.on_event(finished)
            else:
                # The job is over when its last state is where it belongs.
                report = asyncio.ensure_future(self._finish(self._around.tier, finished))
                self._reports.add(report)
                report.add_done_callback(self._reports.discard)

    async def _finish(self, tier: StorageTier, finished: RanksFinished) -> None:
        def settle() -> None:
            for rank in self._ranks.values():
                rank.channel.close()
            tier.wait_idle()

        await asyncio.to_thread(settle)
        self._around.on_event(finished)

    async def _hang_up(self, rank: _Rank) -> None:
        """Hear what the rank said last, and close its channel."""
        closing = self._around.loop.run_in_executor(self._closers, rank.channel.close)
        # Its thread has heard everything by now; or it waits for another machine, and need not.
        await asyncio.wait([closing], timeout=_DRAIN_PATIENCE_S)
