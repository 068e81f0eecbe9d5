"""Orders to more machines than one workflow orders by itself: child workflows, one a batch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial

import pytest
from temporalio.api.enums.v1 import EventType

from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Check, Outcome, Rung, Symptom, Verdict
from everstep.spec.job import JobSpec
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld

pytestmark = [pytest.mark.server]

SPEC = JobSpec.model_validate(
    {
        "name": "wide",
        "command": ["python", "train.py"],
        "code": {"directory": "."},
        "machines": 5,
        "gpus_per_machine": 2,
        "parallelism": {"tp": 2, "dp": 5, "order": "tp-dp"},
        "standby": {"count": 1},
        "ladder": {"evidence_window_s": 0.05, "probation_s": 0.3, "probation_steps": 1},
        "detection": {"stacks_apart_s": 0.1},
        "replay": {"steps": 1, "shows_ratio": 1.0},
    }
)


@contextlib.asynccontextmanager
async def wide(address: str, world: FakeWorld) -> AsyncGenerator[Control]:
    """Five machines that train, ordered two at a time, and a standby."""
    async with controlled(address, SPEC, world, machines_per_batch=2) as control:
        for number in range(6):
            await control.join(f"m{number}")
        await control.training(1)
        await control.world.advance(1, 7)
        yield control


def trains(attempt: int, record: IncidentRecord) -> bool:
    return record.attempt_after == attempt and record.first_step_at_s is not None


async def recovered(control: Control, attempt: int) -> None:
    await control.until(lambda record: record.first_step_at_s is not None)
    await control.world.advance(attempt, attempt * 20)
    await control.until_archived(lambda record: record.outcome is Outcome.RECOVERED, 1)


async def ordered(control: Control, incident: int = 1) -> tuple[list[str], list[str]]:
    """The activities and the child workflows of an incident, by name and by id."""
    activities: list[str] = []
    children: list[str] = []
    for event in (await control.incident(incident).fetch_history()).events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            activities.append(event.activity_task_scheduled_event_attributes.activity_type.name)
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            started = event.child_workflow_execution_started_event_attributes
            children.append(started.workflow_execution.workflow_id)
    return activities, children


async def test_a_restart_leaves_a_batch_and_no_machine_in_the_incident(
    temporal_address: str,
) -> None:
    world = FakeWorld(10)
    async with wide(temporal_address, world) as control:
        await control.lose("m1")
        await recovered(control, attempt=2)
        activities, children = await ordered(control)
        record = control.archive.records[1]
    assert [climb.rung for climb in record.climbs] == [Rung.EVICT]
    assert record.replacements == ("m5",)
    assert sorted(world.done("start")) == sorted(
        [(f"m{slot}", 1) for slot in range(5)] + [(f"m{slot}", 2) for slot in (0, 2, 3, 4, 5)]
    )
    assert sorted(world.done("stop")) == [(f"m{slot}", 1) for slot in (0, 2, 3, 4)]
    # Of four machines two batches, of five three; those that fetch are few.
    kinds = [child.split("/")[-2].partition("-")[0] for child in children]
    assert kinds == ["stop"] * 2 + ["start"] * 3
    assert [name for name in activities if name.startswith("machine.")] == ["machine.restore"]


async def test_a_machine_that_refuses_is_named_and_spoils_no_batch(temporal_address: str) -> None:
    world = FakeWorld(10)
    async with wide(temporal_address, world) as control:
        world.machines["m2"].refuses_to_start = True
        await control.crash("m0", 0)
        await control.until(lambda record: record.first_step_at_s is not None)
        record = await control.record()
    assert [climb.rung for climb in record.climbs] == [Rung.REATTEMPT, Rung.EVICT]
    assert world.done("evict") == [("m2", 1)]
    # m3 shares its batch.
    assert ("m3", 2) in world.done("start")
    assert any("no memory for rank 0's shard" in entry.text for entry in record.timeline)


async def test_a_batch_goes_on_when_its_controller_dies(temporal_address: str) -> None:
    world = FakeWorld(10)
    async with wide(temporal_address, world) as control:
        world.machines["m4"].may_stop.clear()
        await control.crash("m0", 0)
        async with asyncio.timeout(control.patience_s):
            while len(world.done("stop")) < 4:
                await asyncio.sleep(0.01)
        await control.controllers.replace()
        world.machines["m4"].may_stop.set()
        await recovered(control, attempt=2)
    assert sorted(world.done("stop")) == [(f"m{slot}", 1) for slot in range(5)]
    assert sorted(world.done("start")) == sorted(
        (f"m{slot}", attempt) for slot in range(5) for attempt in (1, 2)
    )


async def test_a_batch_waits_for_nobody_who_is_lost(temporal_address: str) -> None:
    world = FakeWorld(10)
    async with wide(temporal_address, world) as control:
        world.machines["m3"].may_stop.clear()
        await control.crash("m0", 0)
        async with asyncio.timeout(control.patience_s):
            while len(world.done("stop")) < 4:
                await asyncio.sleep(0.01)
        await control.alert(Symptom.AGENT_LOST, "m3")
        await recovered(control, attempt=2)
        _, children = await ordered(control)
        of_m3 = next(child for child in children if "/stop-" in child and child.endswith("/2"))
        history = await control.client.get_workflow_handle(of_m3).fetch_history()
        record = control.archive.records[1]
    assert world.done("evict") == [("m3", 1)]
    assert not any("did not stop" in entry.text for entry in record.timeline)
    kinds = [event.event_type for event in history.events]
    assert kinds.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED) == 1
    assert EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT not in kinds


async def test_stacks_and_checks_are_asked_in_batches(temporal_address: str) -> None:
    """What cannot be told from stacks leads to checks, of which one names a machine."""
    world = FakeWorld(10)
    async with wide(temporal_address, world) as control:
        world.machines["m4"].finds = {Check.MACHINE: Verdict.FAULTY}
        await control.hang(1, 7)
        await control.until(lambda record: record.first_step_at_s is not None)
        activities, children = await ordered(control)
        record = await control.record()
    assert [climb.machines for climb in record.climbs if climb.rung is Rung.EVICT] == [("m4",)]
    kinds = [child.split("/")[-2].partition("-")[0] for child in children]
    assert kinds.count("check") == 2 * 3, "GPU, then machine, of three batches each"
    assert kinds.count("trace") >= 2 * 3
    assert not {"machine.trace", "machine.check"} & set(activities)
    assert "all ranks stand alike" in record.stacks[0].reasons[0]


async def test_trials_of_a_replay_are_held_in_batches(temporal_address: str) -> None:
    """NaN that no check sees and that comes back: replay names a machine."""
    world = FakeWorld(10)
    async with wide(temporal_address, world) as control:
        world.machines["m2"].replays = Verdict.FAULTY
        for attempt in (1, 2):
            await control.nan(attempt)
            await control.until(partial(trains, attempt + 1))
        activities, children = await ordered(control)
        record = await control.record()
    assert [climb.machines for climb in record.climbs if climb.rung is Rung.REPLAY] == [("m2",)]
    assert world.done("evict") == [("m2", 1)]
    assert any("/replay-" in child for child in children)
    assert "machine.replay" not in activities
