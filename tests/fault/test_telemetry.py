"""Telemetry over real sockets: agents come, speak, fall silent, and strangers are refused."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import pytest

from everstep.agent import link
from everstep.agent.telemetry import TelemetryClient
from everstep.core.errors import PermanentError
from everstep.core.groups import Layout
from everstep.core.liveness import AgentWatch
from everstep.core.model import Alert, RankProgress, RanksStarted, StepSeen
from everstep.core.progress import NO_STEP, StepBoard
from everstep.core.senses.job import JobLimits, JobSenses
from everstep.core.senses.silence import SilenceLimits
from everstep.core.slow.ballot import VotePolicy
from everstep.core.slow.sense import SlowSense
from everstep.core.vocabulary import Phase, Symptom
from everstep.workers.telemetry import Snapshot, TelemetryServer, watch

HOST, SECRET, JOB = "127.0.0.1", b"secret", "job"


class Told(SlowSense):
    """Remembers what it was told."""

    def __init__(self, layout: Layout, policy: VotePolicy) -> None:
        super().__init__(layout, policy)
        self.suspected: list[tuple[str, list[str]]] = []
        self.counters: list[tuple[float | None, float | None]] = []

    def suspect(self, machine: str, details: Sequence[str]) -> None:
        self.suspected.append((machine, list(details)))

    def note(self, progress: RankProgress) -> None:
        self.counters.append((progress.ran_s, progress.waited_s))


class Desk:
    """An analyzer's telemetry side, and what it saw."""

    def __init__(self) -> None:
        self.seen: list[StepSeen] = []
        self.watch = AgentWatch(lost_after_s=5.0, reconnect_grace_s=0.1)
        self.alerts: list[Alert] = []
        limits = JobLimits(SilenceLimits(3.0, 0.5, 60.0, 60.0), 5.0, 0.1)
        self.slow = Told(Layout(1, dp=2), VotePolicy())
        self.senses = JobSenses(limits, self.slow)
        self.board = StepBoard(2, 0.3)
        self.server = TelemetryServer(
            self.board, self.watch, self.senses, self.seen.append, self.alerts.extend
        )
        self.port = 0

    def agent(self, machine: str, slowed: Callable[[], Sequence[str]] = tuple) -> TelemetryClient:
        return TelemetryClient(
            lambda: asyncio.ensure_future(link.open_link(HOST, self.port, SECRET, JOB)),
            machine,
            1,
            0.05,
            slowed,
        )

    async def until_watched(self, machines: list[str]) -> None:
        async with asyncio.timeout(5):
            while self.watch.machines() != machines:
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def desk() -> AsyncGenerator[Desk]:
    made = Desk()
    async with await made.server.serve(HOST, 0, SECRET, JOB) as listening:
        made.port = listening.sockets[0].getsockname()[1]
        yield made
        made.server.disconnect_all()
    await let_transports_close()


async def let_transports_close() -> None:
    """A closed transport lets go of its socket in the loop's next turn."""
    for _ in range(3):
        await asyncio.sleep(0)


def step(machine: str, rank: int, number: int) -> RankProgress:
    return RankProgress(machine, 1, rank, number, time.time())


async def test_steps_of_two_machines_become_the_jobs_step() -> None:
    async with desk() as analyzer:
        agents = [analyzer.agent("m0"), analyzer.agent("m1")]
        running = [asyncio.create_task(agent.run()) for agent in agents]
        waiting = asyncio.create_task(analyzer.server.wait_for_step(1, 3))
        agents[0].put(step("m0", 0, 4))
        await analyzer.until_watched(["m0", "m1"])
        assert not waiting.done()
        agents[1].put(step("m1", 1, 3))
        seen = await asyncio.wait_for(waiting, 5)
        assert (seen.attempt, seen.step) == (1, 3)
        assert [s.step for s in analyzer.seen] == [3]
        for agent in agents:
            await agent.farewell()
        await asyncio.wait_for(asyncio.gather(*running), 5)
        await analyzer.until_watched([])
        assert analyzer.watch.take_lost(time.time() + 60) == []


async def test_agent_cut_off_is_lost_and_one_that_reconnects_is_not() -> None:
    async with desk() as analyzer:
        agent = analyzer.agent("m0")
        running = asyncio.create_task(agent.run())
        await analyzer.until_watched(["m0"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        async with asyncio.timeout(5):
            while not (lost := analyzer.watch.take_lost(time.time())):
                await asyncio.sleep(0.005)
        assert lost[0].machine == "m0"
        assert "connection closed" in lost[0].reason


async def test_analyzer_started_anew_is_told_everything_again() -> None:
    async with desk() as first, desk() as second:
        agent = first.agent("m0")
        running = asyncio.create_task(agent.run())
        agent.put(step("m0", 0, 7))
        agent.put(step("m0", 1, 8))
        await asyncio.wait_for(first.server.wait_for_step(1, 7), 5)
        first.port = second.port
        first.server.disconnect_all()
        seen = await asyncio.wait_for(second.server.wait_for_step(1, 7), 5)
        assert seen.step == 7
        await agent.farewell()
        await asyncio.wait_for(running, 5)


async def test_ranks_that_report_no_steps_count_as_running_after_a_while() -> None:
    async with desk() as analyzer:
        agent = analyzer.agent("m0")
        running = asyncio.create_task(agent.run())
        agent.put_start(RanksStarted("m0", 1, (0, 1), 0, time.time()))
        seen = await asyncio.wait_for(analyzer.server.wait_for_step(1, 1), 5)
        assert seen.step == NO_STEP
        await agent.farewell()
        await asyncio.wait_for(running, 5)


async def test_watcher_sees_the_newest_step() -> None:
    async with desk() as analyzer:
        agent = analyzer.agent("m0")
        running = asyncio.create_task(agent.run())
        agent.put(step("m0", 0, 5))
        agent.put(replace(step("m0", 1, 6), loss=2.5, phase=Phase.EVALUATION))

        async def first_with_a_step() -> Snapshot:
            async with contextlib.aclosing(watch(HOST, analyzer.port, SECRET, JOB)) as following:
                async for snapshot in following:
                    if snapshot.slowest is not None:
                        return snapshot
            raise AssertionError("the analyzer went away")

        snapshot = await asyncio.wait_for(first_with_a_step(), 5)
        assert (snapshot.slowest, snapshot.steps) == (5, {0: 5, 1: 6})
        assert snapshot.machines == ("m0",)
        assert snapshot.phases == {0: Phase.STEP, 1: Phase.EVALUATION}
        assert snapshot.loss == 2.5
        await agent.farewell()
        await asyncio.wait_for(running, 5)


@pytest.mark.parametrize(("secret", "job"), [(b"wrong", JOB), (SECRET, "other")])
async def test_stranger_is_refused(secret: bytes, job: str) -> None:
    async with desk() as analyzer:
        with pytest.raises(PermanentError):
            await link.open_link(HOST, analyzer.port, secret, job)
        assert analyzer.watch.machines() == []


async def test_garbage_ends_its_own_connection_only() -> None:
    async with desk() as analyzer:
        agent = analyzer.agent("m0")
        running = asyncio.create_task(agent.run())
        await analyzer.until_watched(["m0"])
        stranger = await link.open_link(HOST, analyzer.port, SECRET, JOB)
        await stranger.send({"type": "hello", "machine": "m9"})
        await stranger.send({"type": "progress", "attempt": "x", "rank": [], "step": None})
        with pytest.raises(EOFError):
            await asyncio.wait_for(stranger.receive(), 5)
        stranger.close()
        agent.put(step("m0", 0, 1))
        agent.put(step("m0", 1, 1))
        await asyncio.wait_for(analyzer.server.wait_for_step(1, 1), 5)
        await agent.farewell()
        await asyncio.wait_for(running, 5)


async def test_what_ranks_say_is_judged_whatever_their_clock_says() -> None:
    async with desk() as analyzer:
        agent = analyzer.agent("m0")
        running = asyncio.create_task(agent.run())
        progress = RankProgress("m0", 1, 0, 4, time.time() - 3.0, Phase.STEP, loss=math.nan)
        agent.put(progress)
        async with asyncio.timeout(5):
            while not analyzer.alerts:
                await asyncio.sleep(0.005)
        assert [alert.symptom for alert in analyzer.alerts] == [Symptom.NAN_VALUE]
        assert analyzer.alerts[0].at_s == progress.at_s
        await agent.farewell()
        await asyncio.wait_for(running, 5)


async def test_counters_and_what_slows_a_machine_are_told_and_told_again() -> None:
    standing: list[str] = []
    async with desk() as first, desk() as second:
        agent = first.agent("m0", lambda: tuple(standing))
        running = asyncio.create_task(agent.run())
        agent.put(replace(step("m0", 0, 4), ran_s=1.5, waited_s=0.25))
        agent.put(step("m0", 1, 4))
        await first.until_watched(["m0"])
        standing.append("GPU 0000:1a:00: 89 C, limit 85 C")
        async with asyncio.timeout(5):
            while not first.slow.suspected:
                await asyncio.sleep(0.005)
        standing.clear()
        async with asyncio.timeout(5):
            while len(first.slow.suspected) < 2:
                await asyncio.sleep(0.005)
        assert first.slow.suspected == [("m0", ["GPU 0000:1a:00: 89 C, limit 85 C"]), ("m0", [])]
        assert first.slow.counters == [(1.5, 0.25), (None, None)]
        standing.append("GPU 0000:1a:00: power brake")
        first.port = second.port
        first.server.disconnect_all()
        async with asyncio.timeout(5):
            while not second.slow.suspected:
                await asyncio.sleep(0.005)
        assert second.slow.suspected == [("m0", ["GPU 0000:1a:00: power brake"])]
        await agent.farewell()
        await asyncio.wait_for(running, 5)


async def test_a_hang_and_a_nan_stand_when_the_analyzer_is_started_anew() -> None:
    async with desk() as first, desk() as second:
        agent = first.agent("m0")
        running = asyncio.create_task(agent.run())
        began_s = time.time() - 1000.0
        for number in range(100):
            loss = math.nan if number == 10 else None
            at_s = began_s + 10.0 * number
            agent.put(RankProgress("m0", 1, 0, number, at_s, Phase.STEP, loss=loss))
        await first.until_watched(["m0"])
        first.port = second.port
        first.server.disconnect_all()
        await second.until_watched(["m0"])
        async with asyncio.timeout(5):
            while second.board.steps().get(0) != 99:
                await asyncio.sleep(0.005)
            while len(second.alerts) < 2:
                # Steps of 10 s, and the last one 10 s ago: not yet three times as long.
                assert second.senses.look(time.time()) == []
                second.alerts += second.senses.look(time.time() + 25.0)
                await asyncio.sleep(0.005)
        assert [alert.key for alert in second.alerts] == [
            "nan_value/1/None/None",
            "job_hang/1/None/None",
        ]
        await agent.farewell()
        await asyncio.wait_for(running, 5)
