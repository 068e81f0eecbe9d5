"""The analyzer's port: agents report heartbeats and ranks, watchers get told of every change.

Each connection begins with the mutual proof of the job's secret (`everstep.agent.link`). A message
is one JSON object. From agents: `hello {machine, pid}`, `beat`, `bye`,
`started {attempt, ranks, step, at_s, age_s}` and `progress {attempt, rank, step, at_s, age_s,
phase, from_log}` with what is known of `loss`, `grad_norm`, `mfu`, `ran_s`, `waited_s` and
`stalled_s`, and `slowed {details}` whenever what its senses see that slows the machine changes.
`at_s` is on the agent's clock; `age_s` says how long ago that was, since clocks differ. From
watchers: `watch`; they get `snapshot {attempt, steps, slowest, machines, phases, loss}` after every
change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from everstep.agent import link
from everstep.core.errors import EverstepError
from everstep.core.liveness import AgentWatch
from everstep.core.model import Alert, RankProgress, StepSeen
from everstep.core.progress import StepBoard
from everstep.core.senses.job import JobSenses
from everstep.core.vocabulary import Phase

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
        phases: What each rank does, by its last word in that attempt.
        loss: The newest one that any rank reported, may be NaN; None when none did.
    """

    attempt: int
    steps: dict[int, int]
    slowest: int | None
    machines: tuple[str, ...]
    phases: dict[int, Phase] = field(default_factory=dict[int, Phase])
    loss: float | None = None


class TelemetryServer:
    """Takes in what agents say; answers who waits for steps; knows who went silent.

    Args:
        board: Steps of all ranks.
        watch: Signs of life of all agents.
        senses: What judges the ranks' reports.
        on_step: Called whenever all ranks have finished a further step.
        on_alerts: Called with what a report means, when it means anything.
    """

    def __init__(
        self,
        board: StepBoard,
        watch: AgentWatch,
        senses: JobSenses,
        on_step: Callable[[StepSeen], None],
        on_alerts: Callable[[Sequence[Alert]], None],
    ) -> None:
        self.board = board
        self.watch = watch
        self.senses = senses
        self._on_step = on_step
        self._on_alerts = on_alerts
        self._newest: dict[int, RankProgress] = {}
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
                    async with asyncio.timeout(AGE_CHECK_EVERY_S):
                        await self._changed.wait()
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
                    await self._note(machine, message)
                elif message.get("type") == "started":
                    await self._note_start(machine, message)
                elif message.get("type") == "slowed":
                    details = cast("list[object]", message["details"])
                    self.senses.slowed(machine, [str(detail) for detail in details])
            self.watch.farewell(machine)
        finally:
            self.watch.closed(machine, time.time())
            await self._change()

    async def _note(self, machine: str, message: dict[str, object]) -> None:
        said = _progress(machine, message)
        self._newest[said.rank] = said
        seen = self.board.note(
            said.attempt, said.rank, said.step, said.at_s, said.from_log, said.stalled_s
        )
        if seen is not None:
            self._on_step(seen)
        alerts = self.senses.note(said, _heard_s(message))
        if alerts:
            self._on_alerts(alerts)
        await self._change()

    async def _note_start(self, machine: str, message: dict[str, object]) -> None:
        attempt, step = _whole(message, "attempt"), _whole(message, "step")
        ranks = [int(rank) for rank in cast("list[int]", message["ranks"])]
        self.board.started(attempt, ranks, step, _number(message, "at_s"))
        self.senses.started(attempt, machine, ranks, _heard_s(message))
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
                    "phases": {
                        str(rank): said.phase.value
                        for rank, said in self._newest.items()
                        if said.attempt == self.board.attempt
                    },
                    "loss": self.senses.loss,
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
                phases={int(rank): Phase(phase) for rank, phase in message["phases"].items()},
                loss=message["loss"],
            )


def _progress(machine: str, message: dict[str, object]) -> RankProgress:
    """Read one report; anything else than numbers in the right places is refused."""
    return RankProgress(
        machine,
        _whole(message, "attempt"),
        _whole(message, "rank"),
        _whole(message, "step"),
        _number(message, "at_s"),
        Phase(str(message["phase"])),
        _figure(message, "loss"),
        _figure(message, "grad_norm"),
        _figure(message, "mfu"),
        message["from_log"] is True,
        _figure(message, "ran_s"),
        _figure(message, "waited_s"),
        _figure(message, "stalled_s"),
    )


def _heard_s(message: dict[str, object]) -> float:
    """When an agent saw it, on this process's clock."""
    return time.time() - max(0.0, _number(message, "age_s"))


def _figure(message: dict[str, object], name: str) -> float | None:
    return _number(message, name) if name in message else None


def _number(message: dict[str, object], name: str) -> float:
    value = message[name]
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}")
    return float(value)


def _whole(message: dict[str, object], name: str) -> int:
    value = message[name]
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}")
    return value
