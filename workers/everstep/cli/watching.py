"""`everstep status --watch`: a run as it goes, until it ends or a person has seen enough."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from temporalio.client import Client
from temporalio.service import RPCError

from everstep.cli import watch_view
from everstep.cli.asking import connect
from everstep.cli.console import out
from everstep.cli.find import use_server_of
from everstep.cli.main import STOPPED
from everstep.cli.standing import ANSWER_PATIENCE_S, describe, kept
from everstep.cli.watch_view import Seen
from everstep.core.errors import EverstepError
from everstep.core.groups import Layout
from everstep.core.vocabulary import Spent
from everstep.spec.load import load_spec
from everstep.workers import telemetry
from everstep.workers.account import Account
from everstep.workers.local.folder import RunFolder
from everstep.workers.steps import StepReader
from everstep.workers.telemetry import Snapshot

DRAW_EVERY_S = 0.25
ASK_EVERY_S = 1.0
"""What the job is asked is work for its workflows."""

LINE_EVERY_S = 5.0
"""Where there is no terminal, and nothing but steps has changed."""


SCREEN = Console(highlight=False)
"""Wraps what is longer than a line; what other commands say is wrapped by the terminal."""


class Watcher:
    """Knows the newest of a run.

    Args:
        folder: The run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._steps = StepReader(folder.steps)
        self._account = Account(self._steps.read())
        self._layout: Layout | None = None
        self._client: Client | None = None
        self._standing = kept(folder)
        self._ranks: Snapshot | None = None

    async def ask(self) -> None:
        """Ask the job how it stands."""
        self._layout = self._layout or _layout(self._folder)
        if self._client is None and "temporal" in self._folder.read_state():
            with contextlib.suppress(EverstepError):
                use_server_of(self._folder)
                self._client = await connect(ANSWER_PATIENCE_S)
        # Away for a moment, or just ended: what was known before is shown until then.
        with contextlib.suppress(RPCError):
            self._standing = await describe(self._folder, self._client)
        if (from_s := self._standing.get("started_at_s")) is not None:
            active = self._standing["active_incident"] is not None
            self._account.told(float(from_s), (), active)

    def has_ended(self) -> None:
        """The run has: what it left behind says how, and nobody is asked any more."""
        self._standing = kept(self._folder)

    async def follow_ranks(self) -> None:
        """Hear what the ranks say, for ever."""
        while True:
            try:
                async with contextlib.aclosing(self._snapshots()) as snapshots:
                    async for snapshot in snapshots:
                        self._ranks = snapshot
            except (OSError, EverstepError, asyncio.IncompleteReadError):
                pass
            self._ranks = None
            await asyncio.sleep(ASK_EVERY_S)

    def seen(self) -> Seen:
        """How the run stands now, as far as it is known."""
        for step in self._steps.read():
            self._account.step(step)
            self._standing |= {"step": step.step}
        spent = self._account.spent()
        wall_s = sum(spent.values())
        ranks = self._ranks
        ettr = spent[Spent.PRODUCTIVE] / wall_s if wall_s > 0 else None
        return Seen(
            now_s=time.time(),
            standing=self._standing,
            layout=self._layout,
            attempt=0 if ranks is None else ranks.attempt,
            steps={} if ranks is None else ranks.steps,
            phases={} if ranks is None else ranks.phases,
            machines=None if ranks is None else ranks.machines,
            loss=None if ranks is None else ranks.loss,
            ettr=ettr,
            hour_ettr=None if ettr is None else self._account.recent_ratio(),
        )

    async def _snapshots(self) -> AsyncGenerator[Snapshot]:
        state: Mapping[str, Any] = self._folder.read_state()
        host, port = state.get("telemetry", ("", 0))
        if not port:
            return
        secret = self._folder.secret.read_bytes().strip()
        following = telemetry.watch(host, int(port), secret, self._folder.job())
        async with contextlib.aclosing(following):
            async for snapshot in following:
                yield snapshot


async def watch(folder: RunFolder) -> int:
    """Show a run until it ends.

    Returns:
        The exit code: 0 when it has ended, that of a stopped command when a person stops it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Else the command would end on the spot, and leave the terminal as it is now.
        loop.add_signal_handler(number, stop.set)
    watcher = Watcher(folder)
    await _unless_over(watcher.ask(), folder, stop)
    ranks = asyncio.create_task(watcher.follow_ranks())
    try:
        drawn = out.is_terminal and not out.is_dumb_terminal
        await (_draw if drawn else _tell)(folder, watcher, stop)
    finally:
        ranks.cancel()
        await asyncio.gather(ranks, return_exceptions=True)
    if not stop.is_set():
        out.print(watch_view.line(watcher.seen()), markup=False)
    return STOPPED if stop.is_set() else 0


async def _draw(folder: RunFolder, watcher: Watcher, stop: asyncio.Event) -> None:
    with Live(
        watch_view.picture(watcher.seen()), console=SCREEN, auto_refresh=False, screen=True
    ) as live:
        async for _ in _moments(folder, watcher, stop):
            live.update(watch_view.picture(watcher.seen()), refresh=True)
    # What was seen last stays on the terminal.
    SCREEN.print(watch_view.picture(watcher.seen()))


async def _tell(folder: RunFolder, watcher: Watcher, stop: asyncio.Event) -> None:
    told: tuple[object, ...] = ()
    told_s = 0.0
    async for _ in _moments(folder, watcher, stop):
        seen = watcher.seen()
        news = watch_view.news(seen)
        if news != told or time.monotonic() - told_s >= LINE_EVERY_S:
            told, told_s = news, time.monotonic()
            out.print(watch_view.line(seen), markup=False)
            # A pipe would keep it back.
            out.file.flush()


async def _moments(
    folder: RunFolder, watcher: Watcher, stop: asyncio.Event
) -> AsyncGenerator[None]:
    """Come back now and then, until the run has ended or a person stops it."""
    asked_s = time.monotonic()
    while not stop.is_set() and folder.is_running():
        if time.monotonic() - asked_s >= ASK_EVERY_S:
            await _unless_over(watcher.ask(), folder, stop)
            asked_s = time.monotonic()
        yield
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), DRAW_EVERY_S)
    if not stop.is_set():
        watcher.has_ended()


async def _unless_over(
    asking: Coroutine[Any, Any, None], folder: RunFolder, stop: asyncio.Event
) -> None:
    """Ask, but not on while there is nobody to answer: a run takes its server with it."""
    task = asyncio.create_task(asking)
    while not stop.is_set() and folder.is_running():
        if (await asyncio.wait([task], timeout=DRAW_EVERY_S))[0]:
            break
    if task.done():
        task.result()
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _layout(folder: RunFolder) -> Layout | None:
    """None while the run has written no spec yet."""
    try:
        return load_spec(folder.spec).layout()
    except EverstepError:
        return None
