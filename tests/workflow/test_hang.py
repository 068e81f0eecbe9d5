"""Hangs through the real workflows: ranks are asked before they are stopped, and what follows."""

from __future__ import annotations

import pytest

from everstep.activities.evidence import EvidenceStore
from everstep.core.memory import CodeVersion
from everstep.core.vocabulary import Check, ClimbOutcome, Outcome, Rung, Verdict
from everstep.spec.job import JobSpec
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.unit import stack_texts as texts
from tests.workflow.test_ladder import patient
from tests.workflow.test_recovery import assemble, spec_of

pytestmark = [pytest.mark.server]

CHECKS, EVICT, REATTEMPT, ROLLBACK = Rung.CHECKS, Rung.EVICT, Rung.REATTEMPT, Rung.ROLLBACK


WIDE: dict[str, object] = {
    "machines": 8,
    "parallelism": {"tp": 2, "pp": 2, "dp": 4, "order": "tp-pp-dp"},
}


def quick(spec: JobSpec, **parts: object) -> JobSpec:
    """A spec that does not wait long between two looks."""
    parts = {"detection": {"stacks_apart_s": 0.1}, **parts}
    return JobSpec.model_validate({**spec.model_dump(), **parts})


def stuck(*ranks: int) -> dict[int, bytes]:
    return {rank: texts.dump(texts.USER_LOCK, rank) for rank in ranks}


async def restarted(control: Control) -> None:
    await control.until(lambda r: r.restored_step is not None and r.first_step_at_s is not None)


async def test_who_holds_the_others_up_is_evicted(temporal_address: str) -> None:
    world = FakeWorld(8, stacks=stuck(3))
    async with controlled(temporal_address, quick(spec_of()), world) as control:
        await assemble(control)
        await control.hang(1, 7)
        await restarted(control)
        record = await control.record()
    assert [(c.rung, c.machines) for c in record.climbs] == [(EVICT, ("m1",))]
    assert record.finding.ranks == (3,)
    assert "rank 3 is outside any collective, in acquire_token" in record.finding.reason
    kinds = [effect.kind for effect in world.effects]
    assert kinds.count("trace") == 8, "all machines, twice"
    assert kinds.index("stop") > max(i for i, kind in enumerate(kinds) if kind == "trace")
    assert world.done("evict") == [("m1", 1)]
    (stacks,) = record.stacks
    assert (stacks.verdict, stacks.suspects, stacks.kind) == ("evict", (3,), "tp")
    assert (stacks.machines, stacks.group_only) == (("m1",), ())
    assert any(entry.text.startswith("stacks: evict m1 (tp)") for entry in record.timeline)
    store = EvidenceStore(stacks.evidence)
    assert "2~ 3!" in store.get(stacks.grid).decode()
    assert store.get(stacks.picture).startswith(b"<svg")


async def test_a_group_is_evicted_tested_and_comes_back_where_it_is_healthy(
    temporal_address: str,
) -> None:
    """Nothing points at a machine of the group: the one that fails its test goes for good."""
    pipeline = {rank: texts.dump(texts.IRECV, rank) for rank in range(4, 8)}
    world = FakeWorld(16, stacks=pipeline)
    async with controlled(temporal_address, quick(spec_of(standbys=1), **WIDE), world) as control:
        await assemble(control)
        world.machines["m3"].finds[Check.GPU] = Verdict.FAULTY
        await control.hang(1, 7)
        await restarted(control)
        world.stacks = {}
        await world.advance(2, 20)
        await control.until_archived(lambda r: r.outcome is Outcome.RECOVERED, 1)
        record, status = control.archive.records[1], await control.status()
    assert [(c.rung, c.machines) for c in record.climbs] == [(EVICT, ("m2", "m3"))]
    assert record.stacks[0].group_only == ("m2", "m3")
    assert record.returned == ("m2",)
    assert sorted(record.replacements) == ["m2", "m8"]
    assert all("held" not in entry.text for entry in record.timeline), "there were enough"
    assert world.done("evict") == [("m3", 1)], "m2 was never taken down"
    assert status.assignment is not None
    assert sorted(status.assignment.machine_names()) == [
        "m0", "m1", "m2", "m4", "m5", "m6", "m7", "m8"
    ]  # fmt: skip
    found = {history.machine: history for history in status.machines}
    assert "passed its tests" in found["m2"].finding
    assert found["m3"].finding.startswith("gpu test failed")
    # A rank of its own stood out with the others of its group, so its eviction counts.
    assert (found["m2"].evictions, found["m2"].cleared) == (1, 0)


async def test_who_came_back_and_is_suspected_again_is_taken_down(temporal_address: str) -> None:
    """Its tests cannot see what it has: they are not asked a second time."""
    pipeline = {rank: texts.dump(texts.IRECV, rank) for rank in range(4, 8)}
    world = FakeWorld(16, stacks=pipeline)
    async with controlled(temporal_address, quick(spec_of(standbys=1), **WIDE), world) as control:
        await assemble(control)
        world.machines["m3"].finds[Check.GPU] = Verdict.FAULTY
        await control.hang(1, 7)
        await restarted(control)
        await control.join("m9")
        await control.hang(2, 8)
        await control.until(lambda r: len(r.returned) == 2)
        await restarted(control)
        world.stacks = {}
        await world.advance(3, 20)
        await control.until_archived(lambda r: r.outcome is Outcome.RECOVERED, 1)
        record = control.archive.records[1]
    assert [set(climb.machines) for climb in record.climbs] == [{"m2", "m3"}, {"m2", "m8"}]
    assert record.returned == ("m2", "m8")
    assert sorted(world.done("evict")) == [("m2", 1), ("m3", 1)]


async def test_who_only_shares_the_group_is_cleared(temporal_address: str) -> None:
    """Two of four stages are stuck; the other two go with them, and wait for a slot again."""
    world = FakeWorld(16, stacks=stuck(0, 2))
    layout = {"pp": 4, "dp": 4, "order": "pp-dp"}
    spec = quick(spec_of(standbys=4), machines=16, gpus_per_machine=1, parallelism=layout)
    async with controlled(temporal_address, spec, world) as control:
        await assemble(control)
        await control.hang(1, 7)
        await restarted(control)
        await control.until(lambda r: len(r.returned) == 2)
        world.stacks = {}
        await world.advance(2, 20)
        await control.until_phase("training")
        record, status = await control.record(), await control.status()
    assert record.evicted == ("m0", "m1", "m2", "m3")
    assert record.returned == ("m1", "m3")
    assert sorted(machine for machine, _ in world.done("evict")) == ["m0", "m2"]
    assert sorted(info.machine for info in status.pool) == ["m1", "m3"]
    cleared = {history.machine: history.cleared for history in status.machines}
    assert cleared == {"m0": 0, "m1": 1, "m2": 0, "m3": 1}


async def test_a_job_that_moves_is_not_stopped(temporal_address: str) -> None:
    world = FakeWorld(8, moving=True)
    async with controlled(temporal_address, quick(spec_of()), world) as control:
        await assemble(control)
        await control.hang(1, 7)
        await control.until(lambda r: bool(r.stacks))
        await world.advance(1, 8)
        await control.until_phase("training")
        await control.until_archived(lambda r: r.outcome is Outcome.RECOVERED, 1)
        record = control.archive.records[1]
        # The next silence of the same attempt is heard again.
        world.moving, world.stacks = False, stuck(3)
        await control.hang(1, 8)
        await control.until(lambda r: r.first_step_at_s is not None, incident=2)
    assert (record.stacks[0].verdict, record.outcome) == ("moving", Outcome.RECOVERED)
    assert record.climbs == ()
    assert any("slow, not stuck" in entry.text for entry in record.timeline)
    assert [attempt for _, attempt in world.done("start")] == [1] * 4 + [2] * 4
    assert world.done("evict") == [("m1", 2)]


async def test_stacks_that_do_not_tell_lead_to_checks(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, quick(patient()), world) as control:
        await assemble(control)
        await control.hang(1, 7)
        await restarted(control)
        record = await control.record()
    assert [climb.rung for climb in record.climbs] == [CHECKS, REATTEMPT]
    assert (record.stacks[0].verdict, record.stacks[0].next_step) == ("unobservable", "replay")
    assert "stacks do not tell who: all ranks stand alike" in record.finding.reason
    assert world.done("evict") == []


async def test_a_program_that_hangs_everywhere_is_rolled_back(temporal_address: str) -> None:
    world = FakeWorld(8, stacks=stuck(*range(8)))
    earlier = (CodeVersion("v0", "/code/v0", proven=True),)
    async with controlled(temporal_address, quick(patient()), world, earlier) as control:
        await assemble(control)
        await control.hang(1, 7)
        await restarted(control)
        record = await control.record()
    assert [(c.rung, c.outcome) for c in record.climbs] == [(ROLLBACK, ClimbOutcome.DONE)]
    assert "the program itself" in record.climbs[0].reason


async def test_a_machine_that_cannot_say_is_suspected(temporal_address: str) -> None:
    world = FakeWorld(8, unheard={"m2"})
    async with controlled(temporal_address, quick(spec_of()), world) as control:
        await assemble(control)
        await control.hang(1, 7)
        await restarted(control)
        record = await control.record()
    assert world.done("evict") == [("m2", 1)]
    assert "nor did its machine: PermanentError: m2: no disk" in record.finding.reason


async def test_a_rank_that_ended_tells_more_than_stacks(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, quick(patient()), world) as control:
        await assemble(control)
        await control.crash("m1", 2)
        await control.hang(1, 7)
        await restarted(control)
        record = await control.record()
    assert record.finding.symptom == "process_crash"
    assert world.done("trace") == []
