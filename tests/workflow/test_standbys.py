"""Machines without a slot: tested before they count, tested again, asked for when they lack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from everstep.core.memory import history_of
from everstep.core.model import Alert
from everstep.core.vocabulary import Check, Observer, Outcome, Symptom, Verdict
from everstep.spec.job import JobSpec
from everstep.workflows.job import RunJob
from everstep.workflows.messages import JobStatus
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.workflow.test_job import flood
from tests.workflow.test_recovery import assemble, spec_of

pytestmark = [pytest.mark.server]


def caring(count: int = 1, **standby: Any) -> JobSpec:
    base = spec_of(count)
    return JobSpec.model_validate({**base.model_dump(), "standby": {"count": count, **standby}})


def pool(status: JobStatus) -> list[str]:
    return [info.machine for info in status.pool]


async def until(control: Control, holds: Callable[[JobStatus], object]) -> JobStatus:
    """Wait until the job's status satisfies a condition."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + control.patience_s
    while not holds(status := await control.status()):
        assert loop.time() < deadline_s, f"never came true; last seen: {status}"
        await asyncio.sleep(0.02)
    return status


async def recovered(control: Control, attempt: int, incident: int = 1) -> None:
    await control.until(lambda r: r.first_step_at_s is not None, incident)
    await control.world.advance(attempt, attempt * 20)
    await control.until(lambda r: r.outcome is Outcome.RECOVERED, incident)


async def test_a_standby_counts_after_its_tests_alone(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, caring(), world) as control:
        await assemble(control)
        status = await control.status()
    done = [(effect.kind, effect.machine) for effect in world.effects]
    before = done[: done.index(("start", "m0"))]
    assert ("check.gpu", "m4") in before
    assert before.index(("prepare", "m4")) < before.index(("check.machine", "m4"))
    # Who takes a slot at once shows by its ranks what it is worth.
    assert {machine for kind, machine in done if kind.startswith("check")} == {"m4"}
    assert pool(status) == ["m4"]
    assert world.requests == []


@pytest.mark.parametrize("verdict", [Verdict.FAULTY, Verdict.UNOBSERVABLE])
async def test_who_fails_on_arrival_is_refused_and_replaced(
    temporal_address: str, verdict: Verdict
) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, caring(), world) as control:
        bad = await control.join("m4")
        bad.finds[Check.MACHINE] = verdict
        for number in range(4):
            await control.join(f"m{number}")
        await control.training(1)
        status = await until(control, lambda s: world.requests and world.done("evict"))
        assert pool(status) == []
        assert world.done("evict") == [("m4", 0)]
        [request] = world.requests
        assert (request.count, request.total, request.number) == (1, 5, 1)
        found = history_of(status.machines, "m4").finding
        assert found.startswith("m4 is not taken for a standby: machine test"), found
        times = world.done("check.machine").count(("m4", 0))
        assert times == (1 if verdict is Verdict.FAULTY else 2)
        await control.join("m5")
        status = await until(control, lambda s: pool(s) == ["m5"])
        assert status.standbys is not None
        assert (status.standbys.asked_for, status.standbys.arriving) == (0, ())
        notes = [note.text for note in status.notes]
    assert "asked the cluster for 1 machine: 0 of 1 standbys are left" in notes
    assert len(world.requests) == 1


async def test_only_what_lacks_is_asked_for(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, caring(), world) as control:
        await assemble(control)
        # Their copies lie on the two others.
        both = [
            Alert(Observer.ANALYZER, Symptom.AGENT_LOST, time.time(), "lost", machine=name)
            for name in ("m0", "m1")
        ]
        await control.handle.signal(RunJob.report_alerts, both)
        await control.until(lambda r: r.outcome is Outcome.HELD)
        await until(control, lambda s: world.requests)
        await control.join("m5")
        await recovered(control, 2)
        record = await control.record()
        status = await until(control, lambda s: len(world.requests) == 2)
    assert sorted(record.replacements) == ["m4", "m5"]
    assert ("check.gpu", "m5") in [(e.kind, e.machine) for e in world.effects]
    shortfall, refill = world.requests
    assert (shortfall.count, shortfall.reason) == (1, "slots are vacant and no standby is left")
    assert (refill.count, refill.reason) == (1, "0 of 1 standbys are left")
    assert any("for 1 machine: slots are vacant" in note.text for note in status.notes)


async def test_a_standby_that_fails_in_its_sleep_is_replaced(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, caring(2, check_every_s=0.2), world) as control:
        await assemble(control)
        await until(control, lambda s: world.done("check.machine").count(("m5", 1)) >= 2)
        world.machines["m4"].finds[Check.GPU] = Verdict.FAULTY
        status = await until(control, lambda s: pool(s) == ["m5"] and world.done("evict"))
        assert world.done("evict") == [("m4", 0)]
        assert status.incidents == 0
        await control.join("m6")
        await until(control, lambda s: pool(s) == ["m5", "m6"])
    assert [request.count for request in world.requests] == [1]


async def test_nobody_waits_for_the_test_of_a_standby(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, caring(check_every_s=0.2), world) as control:
        await assemble(control)
        world.machines["m4"].checks_last = True
        seen = len(world.done("check.gpu"))
        await until(control, lambda s: len(world.done("check.gpu")) > seen)
        await control.lose("m1")
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
    assert record.replacements == ("m4",)
    assert world.done("evict") == [("m1", 1)]


async def test_who_cannot_run_the_code_is_refused(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, caring(), world) as control:
        await assemble(control)
        await control.lose("m4")
        await until(control, lambda s: len(world.requests) == 1)
        world.refused_code.add("/code/v1")
        await control.join("m5")
        status = await until(control, lambda s: world.done("evict"))
    assert world.done("evict") == [("m5", 0)]
    assert "code: train.py, line 3" in history_of(status.machines, "m5").finding


async def test_what_is_asked_for_and_tested_outlives_a_long_history(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, caring(), world, max_events=150) as control:
        await assemble(control)
        first_run = (await control.handle.describe()).run_id
        await control.lose("m4")
        await until(control, lambda s: len(world.requests) == 1)
        world.checks_last = True
        machine = await control.join("m5")
        await until(control, lambda s: world.done("check.gpu")[-1][0] == "m5")
        world.checks_last = machine.checks_last = False
        await flood(control, 100)
        await until(control, lambda s: pool(s) == ["m5"])
        assert (await control.handle.describe()).run_id != first_run
        assert (await control.finish()).incidents == 0
    assert len(world.requests) == 1


async def test_switched_off_nobody_is_tested_or_asked_for(temporal_address: str) -> None:
    world = FakeWorld(8)
    off = caring(self_check=False, check_every_s=0, refill=False)
    async with controlled(temporal_address, off, world) as control:
        await assemble(control)
        await control.lose("m1")
        await recovered(control, 2)
        await control.finish()
    assert world.requests == []
    assert not [effect for effect in world.effects if effect.kind.startswith("check")]


async def test_a_job_ends_though_its_cluster_does_not_answer(temporal_address: str) -> None:
    world = FakeWorld(8, brings_nothing=True)
    async with controlled(temporal_address, caring(), world) as control:
        await assemble(control)
        await control.lose("m1")
        await recovered(control, 2)
        status = await until(control, lambda s: s.standbys is not None and s.standbys.asked_for)
        began_s = time.monotonic()
        assert (await control.finish()).incidents == 1
    assert time.monotonic() - began_s < 30.0
    assert any("asked the cluster for 1 machine" in note.text for note in status.notes)
    assert world.requests == []
