"""The analyzer's port: agents report heartbeats and steps, watchers get told of every change.

Each connection begins with the mutual proof of the job's secret (`everstep.agent.link`). A message
is one JSON object. From agents: `hello {machine, pid}`, `beat`, `bye`,
`started {attempt, ranks, step, at_s}` and `progress {attempt, rank, step, at_s}`. From watchers:
`watch`; they get `snapshot {attempt, steps, slowest, machines}` after every change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import cast

from everstep.agent import link
from everstep.core.errors import EverstepError
from everstep.core.liveness import AgentWatch
from everstep.core.model import RankProgress, StepSeen
from everstep.core.progress import StepBoard

logger = logging.getLogger(__name__)

AGE_CHECK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far the job is, as the analyzer sees it.

    Attributes:
        attempt: Newest attempt; 0 before the first report.
        steps: Newest finished step by rank, in that attempt.
        slowest: Newest step that all ranks of it have finished, or None.
        machines: Machines whose agents are connected, sorted.
    """

    attempt: int
    steps: dict[int, int]
    slowest: int | None
    machines: tuple[str, ...]


class TelemetryServer:
    """Takes in what agents say; answers who waits for steps; knows who went silent.

    Args:
        board: Steps of all ranks.
        watch: Signs of life of all agents.
        on_step: Called whenever all ranks have finished a further step.
    """

    def __init__(
        self, board: StepBoard, watch: AgentWatch, on_step: Callable[[StepSeen], None]
    ) -> None:
        self.board = board
        self.watch = watch
        self._on_step = on_step
        self._changed = asyncio.Condition()
        self._version = 0
        self._links: list[link.AsyncLink] = []

    async def serve(self, host: str, port: int, secret: bytes, job: str) -> asyncio.Server:
        """Listen; the server runs until it is closed."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                peer = await link.serve_link(reader, writer, secret, job)
            except (EverstepError, OSError, asyncio.IncompleteReadError) as error:
                logger.warning("refused %s: %s", writer.get_extra_info("peername"), error)
                writer.close()
                return
            self._links.append(peer)
            try:
                await self._talk(peer)
            finally:
                self._links.remove(peer)
                peer.close()

        return await asyncio.start_server(accept, host, port)

    def disconnect_all(self) -> None:
        """End every connection; agents will look for the next analyzer."""
        for peer in self._links:
            peer.close()

    async def wait_for_step(self, attempt: int, step: int) -> StepSeen:
        """Return once every rank of the attempt has finished the step."""
        async with self._changed:
            while (seen := self.board.reached(attempt, step, time.time())) is None:
                # Ranks that report nothing change nothing but their age.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), AGE_CHECK_EVERY_S)
        return seen

    async def _talk(self, peer: link.AsyncLink) -> None:
        """Serve one connection, which its first message makes an agent's or a watcher's."""
        who = "a watcher"
        try:
            first = await peer.receive()
            if first.get("type") == "watch":
                await self._feed(peer)
            else:
                who = str(first["machine"])
                await self._attend(peer, who)
        except (OSError, EOFError, asyncio.IncompleteReadError, EverstepError) as error:
            logger.info("connection of %s ended: %s", who, error)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("%s sent something unreadable: %r", who, error)

    async def _attend(self, peer: link.AsyncLink, machine: str) -> None:
        """Take in what an agent says until it leaves, with a farewell or without."""
        logger.info("agent of %s connected", machine)
        self.watch.heard(machine, time.time())
        await self._change()
        try:
            while (message := await peer.receive()).get("type") != "bye":
                self.watch.heard(machine, time.time())
                if message.get("type") == "progress":
                    await self._note(message)
                elif message.get("type") == "started":
                    await self._note_start(message)
            self.watch.farewell(machine)
        finally:
            self.watch.closed(machine, time.time())
            await self._change()

    async def _note(self, message: dict[str, object]) -> None:
        progress = _progress(message)
        seen = self.board.note(progress.attempt, progress.rank, progress.step, progress.at_s)
        if seen is not None:
            self._on_step(seen)
        await self._change()

    async def _note_start(self, message: dict[str, object]) -> None:
        ranks = cast("list[int]", message["ranks"])
        at_s = cast("float", message["at_s"])
        self.board.started(
            _whole(message, "attempt"),
            [int(rank) for rank in ranks],
            _whole(message, "step"),
            float(at_s),
        )
        await self._change()

    async def _change(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    async def _feed(self, peer: link.AsyncLink) -> None:
        """Tell a watcher of every change until it goes away; slow watchers skip some."""
        while True:
            told = self._version
            newest = self.board.newest
            current = newest is not None and newest.attempt == self.board.attempt
            await peer.send(
                {
                    "type": "snapshot",
                    "attempt": self.board.attempt,
                    "steps": {str(rank): step for rank, step in self.board.steps().items()},
                    "slowest": newest.step if newest is not None and current else None,
                    "machines": self.watch.machines(),
                }
            )
            async with self._changed:
                while self._version == told:
                    await self._changed.wait()


async def watch(host: str, port: int, secret: bytes, job: str) -> AsyncGenerator[Snapshot]:
    """Follow a job's progress; ends when the analyzer goes away.

    Raises:
        OSError: Nobody listens there.
        EverstepError: The other side did not prove that it knows the job's secret.
    """
    peer = await link.open_link(host, port, secret, job)
    with contextlib.closing(peer):
        await peer.send({"type": "watch"})
        while True:
            try:
                message = await peer.receive()
            except (OSError, EOFError, asyncio.IncompleteReadError):
                return
            steps = cast("dict[str, int]", message["steps"])
            yield Snapshot(
                attempt=int(message["attempt"]),
                steps={int(rank): int(step) for rank, step in steps.items()},
                slowest=None if message["slowest"] is None else int(message["slowest"]),
                machines=tuple(message["machines"]),
            )


def _progress(message: dict[str, object]) -> RankProgress:
    """Read one report; anything else than numbers in the right places is refused."""
    at_s = message["at_s"]
    if not isinstance(at_s, int | float):
        raise TypeError(f"at_s is {at_s!r}")
    return RankProgress(
        str(message.get("machine", "")),
        _whole(message, "attempt"),
        _whole(message, "rank"),
        _whole(message, "step"),
        float(at_s),
    )


def _whole(message: dict[str, object], name: str) -> int:
    value = message[name]
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}")
    return value
