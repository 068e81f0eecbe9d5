"""When and how the workflows go to the storage tier, on a real server with fake machines."""

from __future__ import annotations

import pytest

from everstep.core.orders import StoredCheckpoint
from everstep.core.vocabulary import Outcome
from everstep.spec.job import JobSpec
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.messages import Approval
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld

pytestmark = [pytest.mark.server]

LAYOUT = "tp=1,pp=1,dp=2;order=tp-pp-dp"


def spec_of(**checkpoint: object) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "job",
            "command": ["python", "train.py"],
            "code": {"directory": "."},
            "machines": 2,
            "gpus_per_machine": 1,
            "parallelism": {"tp": 1, "pp": 1, "dp": 2, "order": "tp-pp-dp"},
            "standby": {"count": 1},
            "ladder": {"evidence_window_s": 0.05, "probation_s": 0.1, "probation_steps": 1},
            "safety": {"max_evicted_ratio": 1.0},
            "checkpoint": {
                "storage": {"path": "/storage", "every_steps": 10}, **checkpoint
            },
        }
    )  # fmt: skip


def stored(step: int, layout: str = LAYOUT, run: str = "0") -> StoredCheckpoint:
    return StoredCheckpoint(f"s{step}", step, 1, run, float(step), layout, 1)


async def assemble(control: Control) -> None:
    for number in range(3):
        await control.join(f"m{number}")
    await control.training(1)


async def test_a_new_run_goes_on_from_an_earlier_one(temporal_address: str) -> None:
    world = FakeWorld(2)
    world.stored = [stored(20), stored(40), stored(30)]
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        notes = [note.text for note in (await control.status()).notes]
        await control.finish()
    assert [o.restore_step for m in ("m0", "m1") for o in world.machines[m].orders] == [40, 40]
    assert [o.stored for o in world.machines["m0"].orders] == [""]
    assert world.machines["m0"].orders[0].run
    assert sorted(world.done("restore")) == [("m0", 1), ("m1", 1)]
    assert notes == [
        "step 40 comes from storage (s40)",
        "this run goes on from step 40 of an earlier one",
    ]


async def test_a_run_from_scratch_ignores_earlier_ones(temporal_address: str) -> None:
    world = FakeWorld(2)
    world.stored = [stored(40)]
    async with controlled(temporal_address, spec_of(), world, from_scratch=True) as control:
        await assemble(control)
        await control.finish()
    assert [order.restore_step for order in world.machines["m0"].orders] == [0]
    assert world.done("restore") == []


async def test_a_damaged_checkpoint_gives_way_to_the_one_before(temporal_address: str) -> None:
    world = FakeWorld(2)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        await world.advance(1, 50)
        world.stored = [stored(20), stored(30), stored(40)]
        world.damaged = {"s40"}
        for machine in world.machines.values():
            machine.copies = {}
        await control.crash("m0", 0)
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
        await world.advance(2, 60)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
        await control.finish()
    assert record.restored_step == 30
    texts = [entry.text for entry in record.timeline]
    assert any(text.startswith("step 40 in storage is of no use: m") for text in texts)
    assert "step 30 comes from storage (s30)" in texts
    assert [o.restore_step for o in world.machines["m0"].orders] == [0, 30]


async def test_memory_is_better_than_storage(temporal_address: str) -> None:
    world = FakeWorld(2)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        await world.advance(1, 50)
        world.stored = [stored(40)]
        await control.crash("m0", 0)
        await control.until(lambda r: r.first_step_at_s is not None)
        assert (await control.record()).restored_step == 50
        await control.finish()
    assert world.done("restore") == []


async def test_another_layout_is_left_to_the_ranks(temporal_address: str) -> None:
    world = FakeWorld(2)
    world.stored = [stored(40, "tp=2,pp=1,dp=1;order=tp-pp-dp")]
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        await control.finish()
    assert [(o.restore_step, o.stored) for o in world.machines["m1"].orders] == [(40, "s40")]


async def test_an_unreadable_storage_holds_where_the_spec_says_so(temporal_address: str) -> None:
    world = FakeWorld(2)
    spec = spec_of(when_all_copies_lost="hold")
    async with controlled(temporal_address, spec, world) as control:
        await assemble(control)
        await world.advance(1, 50)
        for machine in world.machines.values():
            machine.storage_error = "/storage: Permission denied"
        world.machines["m1"].copies = {}
        world.machines["m0"].copies = {0: 50}
        await control.crash("m0", 0)
        await control.until(lambda r: r.outcome is Outcome.HELD)
        record = await control.record()
    assert "rank 1: no copy" in record.missing
    texts = [entry.text for entry in record.timeline]
    assert "m0 cannot read the storage: /storage: Permission denied" in texts


async def test_a_job_whose_machines_are_all_lost_holds_where_the_spec_says_so(
    temporal_address: str,
) -> None:
    world = FakeWorld(2)
    async with controlled(temporal_address, spec_of(when_all_copies_lost="hold"), world) as control:
        await assemble(control)
        await control.join("m3")
        await world.advance(1, 50)
        await control.lose("m0", step=50)
        await control.lose("m1", step=50)
        await control.until(lambda r: r.outcome is Outcome.HELD)
        record = await control.record()
        assert record.missing.startswith("no copy is left of step 50, nor of any other.")
        assert world.machines["m2"].orders == []
        await control.incident().signal(ResolveIncident.approve, Approval("ada"))
        await control.until_started(2)
        await control.finish()
    assert [order.restore_step for order in world.machines["m2"].orders] == [0]


async def test_a_script_that_saves_nothing_starts_over_unasked(temporal_address: str) -> None:
    world = FakeWorld(2)
    async with controlled(temporal_address, spec_of(when_all_copies_lost="hold"), world) as control:
        await assemble(control)
        await world.advance(1, 50)
        for machine in world.machines.values():
            machine.copies = {}
        await control.crash("m0", 0)
        await control.until_started(2)
        await control.finish()
    assert [order.restore_step for order in world.machines["m1"].orders] == [0, 0]
