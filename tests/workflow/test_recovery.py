"""What the workflows do, on a real server with fake machines: order and number of effects."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from everstep.core.model import Alert, CopyDamaged
from everstep.core.vocabulary import Observer, Outcome, Rung, Symptom
from everstep.spec.job import JobSpec
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import Approval
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld

pytestmark = [pytest.mark.server]


def spec_of(standbys: int = 1, **ladder: float) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "job",
            "command": ["python", "train.py"],
            "code": {"directory": "."},
            "machines": 4,
            "gpus_per_machine": 2,
            "parallelism": {"tp": 2, "pp": 2, "dp": 2, "order": "tp-pp-dp"},
            "standby": {"count": standbys, "self_check": False, "refill": False},
            "ladder": {
                "evidence_window_s": 0.05,
                "probation_s": 0.3,
                "probation_steps": 1,
                **ladder,
            },
        }
    )


def sensed(machine: str, symptom: Symptom, confident: bool) -> Alert:
    """What a machine's own senses tell of it."""
    return Alert(
        Observer.AGENT,
        symptom,
        time.time(),
        "GPU 0000:1a:00: does not answer",
        machine=machine,
        subject="GPU 0000:1a:00",
        confident=confident,
    )


async def tell(control: Control, alert: Alert) -> None:
    await control.handle.signal(RunJob.report_alerts, [alert])


async def assemble(control: Control) -> None:
    """Let all machines and standbys join, and attempt 1 make its first step."""
    for number in range(control.spec.machines + control.spec.standby_count()):
        await control.join(f"m{number}")
    await control.training(1)
    await control.world.advance(1, 7)


async def test_lost_machine_is_replaced_by_the_standby(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        await control.lose("m1")
        await control.until(lambda r: r.first_step_at_s is not None)
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
        result = await control.finish()
        record = control.archive.records[1]
    assert result.attempts == 2
    assert result.incidents == 1
    assert world.done("evict") == [("m1", 1)]
    assert sorted(world.done("start")) == sorted(
        [(f"m{i}", 1) for i in range(4)] + [(m, 2) for m in ("m0", "m2", "m3", "m4")]
    )
    # The standby fetches the lost ranks; the machine whose copies the lost one kept, nothing else.
    assert ("m4", 2) in world.done("restore")
    assert [c.rung for c in record.climbs] == [Rung.EVICT]
    assert record.finding.symptom is Symptom.AGENT_LOST
    assert (record.restored_step, record.failed_step, record.lost_steps) == (7, 7, 0)
    assert record.replacements == ("m4",)
    assert any("m4 lacked ranks 2" in entry.text for entry in record.timeline)


async def test_killed_rank_is_tried_again_and_nobody_evicted(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        await control.crash("m2", 5)
        await control.until(lambda r: r.first_step_at_s is not None)
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
        await control.finish()
        record = control.archive.records[1]
    assert world.done("evict") == []
    assert world.done("restore") == []
    assert [c.rung for c in record.climbs] == [Rung.REATTEMPT]
    assert (record.finding.machines, record.finding.ranks) == (("m2",), (5,))


async def test_a_damaged_copy_is_told_in_the_incident_once(temporal_address: str) -> None:
    text = "machine m2's step 7 of rank 5 is damaged: fetched from machine m0"
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(probation_s=60), world) as control:
        await assemble(control)
        await control.crash("m2", 5)
        await control.until_started(2)
        for at_s in (time.time(), time.time()):
            damaged = CopyDamaged("m2", 2, 5, 7, text, at_s)
            await control.handle.signal(RunJob.copy_damaged, damaged)
        await control.until(lambda r: any(text in entry.text for entry in r.timeline))
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
    # It is no evidence against the attempt that restores all the same.
    assert record.attempt_after == 2
    assert [e.text for e in record.timeline if text in e.text] == [f"attempt 2: {text}"]


async def test_same_failure_within_probation_evicts_its_machine(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(probation_s=60), world) as control:
        await assemble(control)
        await control.crash("m2", 5)
        await control.until(lambda r: r.first_step_at_s is not None)
        await control.crash("m2", 5)
        await control.until(lambda r: r.attempt_after == 3 and r.first_step_at_s is not None)
        record = await control.record()
    # Tests pass, there is no older code and no replay; the machine stood out each time.
    assert [c.rung for c in record.climbs] == [Rung.REATTEMPT, Rung.CHECKS, Rung.EVICT]
    assert world.done("evict") == [("m2", 1)]
    assert record.replacements == ("m4",)


async def test_other_failure_within_probation_is_an_incident_of_its_own(
    temporal_address: str,
) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(probation_s=60), world) as control:
        await assemble(control)
        await control.crash("m2", 5)
        await control.until(lambda r: r.first_step_at_s is not None)
        await control.crash("m0", 1)
        await control.until(lambda r: r.first_step_at_s is not None, incident=2)
        await control.until_archived(lambda r: r.outcome is Outcome.RECOVERED, 1)
        first, second = control.archive.records[1], await control.record(2)
    assert first.outcome is Outcome.RECOVERED
    assert [c.rung for c in second.climbs] == [Rung.REATTEMPT]
    assert second.attempt_before == 2
    assert world.done("evict") == []


async def test_progress_that_nobody_saw_counts_as_recovered(temporal_address: str) -> None:
    """The wait for a step was cut short, yet ranks got on: what fails next is another failure."""
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        world.training = False
        await control.crash("m2", 5)
        await control.until_started(2)
        for machine in world.machines.values():
            machine.keep(20)
        await control.crash("m0", 1)
        await control.until(lambda r: r.attempt_after == 3, incident=2)
        await control.until_archived(lambda r: r.outcome is Outcome.RECOVERED, 1)
        first, second = control.archive.records[1], await control.record(2)
    assert (first.outcome, first.restored_step, first.lost_steps) == (Outcome.RECOVERED, 7, 0)
    assert [c.rung for c in second.climbs] == [Rung.REATTEMPT]
    assert world.done("evict") == []


async def test_without_standby_it_holds_until_a_machine_is_added(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(standbys=0), world) as control:
        await assemble(control)
        await control.lose("m3")
        await control.until(lambda r: r.outcome is Outcome.HELD)
        held = await control.record()
        await control.join("m9")
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
    assert "1 machine missing for slot 3" in held.missing
    assert "everstep machine add" in held.missing
    assert record.replacements == ("m9",)
    assert record.lost_steps == 0
    assert record.missing == ""


async def test_an_end_that_is_told_late_is_no_new_failure(temporal_address: str) -> None:
    """Its machine has told of it when all ranks were stopped."""
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(standbys=0), world) as control:
        await assemble(control)
        ended = world.machines["m0"].crash(1, None)
        await control.lose("m1")
        await control.until(lambda r: r.outcome is Outcome.HELD)
        await control.tell_end(ended)
        await control.until(lambda r: any("rank 1 was killed" in e.text for e in r.timeline))
        await control.join("m4")
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
        await control.training(2)
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
        await control.finish()
        assert (await control.status()).incidents == 1
    assert [climb.rung for climb in record.climbs] == [Rung.EVICT]


async def test_steps_that_were_told_and_not_saved_are_lost(temporal_address: str) -> None:
    """As of a script that saves every tenth step."""
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        machine = world.machines["m0"]
        ended = machine.exits[-1] = replace(machine.crash(1, None), step=12)
        await control.tell_end(ended)
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
        await control.finish()
    assert (record.restored_step, record.failed_step, record.lost_steps) == (7, 12, 5)


async def test_second_machine_lost_while_the_first_recovers(temporal_address: str) -> None:
    world = FakeWorld(8, training=False)
    async with controlled(temporal_address, spec_of(standbys=2), world) as control:
        for number in range(6):
            await control.join(f"m{number}")
        await control.until_started(1)
        await world.advance(1, 7)
        await control.lose("m1")
        await control.until_started(2)
        await control.lose("m0")
        await control.until_started(3)
        await world.advance(3, 8)
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
    assert world.done("evict") == [("m1", 1), ("m0", 1)]
    assert record.replacements == ("m4", "m5")
    assert (record.restored_step, record.lost_steps) == (7, 0)
    assert [c.rung for c in record.climbs] == [Rung.EVICT, Rung.EVICT]


async def test_machine_that_cannot_start_is_evicted_at_the_second_time(
    temporal_address: str,
) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        world.machines["m2"].refuses_to_start = True
        await control.crash("m0", 0)
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
    assert [c.rung for c in record.climbs] == [Rung.REATTEMPT, Rung.EVICT]
    assert world.done("evict") == [("m2", 1)]


async def test_hundred_alerts_of_one_fault_open_one_incident(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        for _ in range(100):
            await control.alert(Symptom.AGENT_LOST, "m1")
        await control.until(lambda r: r.first_step_at_s is not None)
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
        status = await control.status()
    assert status.incidents == 1
    assert world.done("evict") == [("m1", 1)]


async def test_too_many_evictions_wait_for_a_person(temporal_address: str) -> None:
    world = FakeWorld(8)
    base = spec_of(standbys=2)
    spec = base.model_copy(
        update={"safety": base.safety.model_copy(update={"max_evicted_ratio": 0.25})}
    )
    async with controlled(temporal_address, spec, world) as control:
        await assemble(control)
        await control.lose("m0")
        await control.until(lambda r: r.first_step_at_s is not None)
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
        await control.lose("m3")
        await control.until(lambda r: r.outcome is Outcome.HELD, incident=2)
        held = await control.record(2)
        await control.incident(2).signal(ResolveIncident.approve, Approval("op", "known power cut"))
        await control.until(lambda r: r.first_step_at_s is not None, incident=2)
    assert "at most 1 of 4 machines" in held.missing
    assert world.done("evict") == [("m0", 1), ("m3", 2)]


async def test_lost_standby_opens_no_incident_and_gets_no_slot(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(standbys=2), world) as control:
        await assemble(control)
        await control.alert(Symptom.AGENT_LOST, "m4")
        assert (await control.status()).incidents == 0
        await control.lose("m1")
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
    assert record.replacements == ("m5",)


async def test_restarts_without_progress_end_in_a_hold(temporal_address: str) -> None:
    world = FakeWorld(8)
    spec = spec_of(first_step_timeout_s=0.3, max_restarts_without_progress=2)
    async with controlled(temporal_address, spec, world) as control:
        await assemble(control)
        world.training = False
        await control.crash("m2", 5)
        await control.until(lambda r: r.outcome is Outcome.HELD)
        record = await control.record()
    assert "restarts brought no new step" in record.missing or "nothing left" in record.missing
    assert world.done("evict") == []


async def test_a_machine_that_is_certain_of_its_fault_is_evicted_and_a_suspicion_is_noted(
    temporal_address: str,
) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        await tell(control, sensed("m1", Symptom.INFINIBAND_ERROR, confident=False))
        assert (await control.status()).phase == "training"
        await tell(control, sensed("m2", Symptom.GPU_UNAVAILABLE, confident=True))
        await control.until(lambda r: r.first_step_at_s is not None)
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
        result = await control.finish()
        record = control.archive.records[1]
    assert result.incidents == 1
    assert world.done("evict") == [("m2", 1)]
    assert (record.finding.symptom, record.finding.confident) == (Symptom.GPU_UNAVAILABLE, True)
    assert [climb.rung for climb in record.climbs] == [Rung.EVICT]


async def test_a_standby_that_is_certain_of_its_fault_takes_no_slot(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(standbys=2), world) as control:
        await assemble(control)
        await tell(control, sensed("m4", Symptom.GPU_MEMORY_ERROR, confident=True))
        await control.lose("m1")
        await control.until(lambda r: r.first_step_at_s is not None)
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
        await control.finish()
        record = control.archive.records[1]
    assert record.replacements == ("m5",)
