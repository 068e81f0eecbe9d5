"""Every rung of the ladder through the real workflows, on fake machines with scripted tests."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowUpdateFailedError

from everstep.core.memory import CodeVersion
from everstep.core.vocabulary import Check, ClimbOutcome, Outcome, Rung, Symptom, Verdict
from everstep.spec.job import JobSpec
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import Approval, Decision
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.workflow.test_recovery import assemble, sensed, spec_of, tell

pytestmark = [pytest.mark.server]

CHECKS, EVICT, PAGE = Rung.CHECKS, Rung.EVICT, Rung.PAGE
REATTEMPT, REPLAY, ROLLBACK = Rung.REATTEMPT, Rung.REPLAY, Rung.ROLLBACK


def patient(**parts: object) -> JobSpec:
    """A spec whose incidents stay open for as long as the test makes them fail again."""
    spec = spec_of(standbys=2, probation_s=60).model_dump()
    return JobSpec.model_validate({**spec, **parts})


async def nan(control: Control) -> None:
    """The loss becomes NaN, which points at nobody."""
    status = await control.status()
    assert status.assignment is not None
    await control.nan(status.assignment.attempt)


async def nan_again(control: Control, attempt: int) -> None:
    """It becomes NaN again once this attempt trains."""
    await control.until(lambda r: r.attempt_after == attempt and r.first_step_at_s is not None)
    await nan(control)


async def climbs(control: Control) -> list[tuple[Rung, ClimbOutcome]]:
    return [(climb.rung, climb.outcome) for climb in (await control.record()).climbs]


async def test_nan_is_found_by_the_bitwise_test(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, patient(), world) as control:
        await assemble(control)
        world.machines["m2"].arithmetic = "wrong"
        await nan(control)
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
    assert [(c.rung, c.machines) for c in record.climbs] == [(CHECKS, ("m2",)), (EVICT, ("m2",))]
    order = list(dict.fromkeys(e.kind for e in world.effects if e.kind.startswith("check.")))
    assert order == ["check.gpu", "check.machine", "check.links", "check.bitwise"]
    assert world.done("evict") == [("m2", 1)]


async def test_nan_that_no_check_sees_walks_the_whole_ladder(temporal_address: str) -> None:
    """Reattempt and rollback fail; replay finds the machine."""
    world = FakeWorld(8)
    spec = patient(replay={"steps": 2}, ladder={"probation_s": 60, "evidence_window_s": 0.05})
    earlier = (CodeVersion("v0", "/code/v0", proven=True),)
    async with controlled(temporal_address, spec, world, earlier) as control:
        await assemble(control)
        world.machines["m1"].replays = Verdict.FAULTY
        # Its peers in a trial would wait for it until the deadline, which is half an hour.
        world.machines["m1"].fails_alone = True
        await nan(control)
        await nan_again(control, 2)
        await nan_again(control, 3)
        await control.until(lambda r: r.attempt_after == 4 and r.first_step_at_s is not None)
        record = await control.record()
        status = await control.status()
    assert [(c.rung, c.outcome) for c in record.climbs] == [
        (CHECKS, ClimbOutcome.PASSED),
        (REATTEMPT, ClimbOutcome.DONE),
        (ROLLBACK, ClimbOutcome.DONE),
        (REPLAY, ClimbOutcome.FOUND),
        (EVICT, ClimbOutcome.DONE),
    ]
    assert world.done("evict") == [("m1", 1)]
    assert status.assignment is not None
    assert (status.assignment.code_version, record.code_version) == ("v0", "v0")
    assert world.machines["m0"].code_directories[1:4] == ["/code/v1", "/code/v0", "/code/v0"]


async def test_failure_that_replay_does_not_reproduce_ends_at_a_person(
    temporal_address: str,
) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, patient(replay={"steps": 2}), world) as control:
        await assemble(control)
        await nan(control)
        await nan_again(control, 2)
        await control.until(lambda r: r.outcome is Outcome.HELD)
        held = await control.record()
        await control.incident().signal(ResolveIncident.deny, Approval("op"))
        await control.incident().signal(ResolveIncident.approve, Approval("op", "watch it"))
        await control.until(lambda r: r.attempt_after == 3 and r.first_step_at_s is not None)
        found = await climbs(control)
    assert "nothing left to try" in held.missing
    assert "everstep approve 1" in held.missing
    assert found[-2:] == [(REPLAY, ClimbOutcome.PASSED), (PAGE, ClimbOutcome.DONE)]
    assert world.done("evict") == []


async def test_machine_that_cannot_be_told_is_not_passed(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, patient(), world) as control:
        await assemble(control)
        world.machines["m3"].finds[Check.GPU] = Verdict.UNOBSERVABLE
        await nan(control)
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
    first, second = record.climbs
    assert (first.rung, first.outcome) == (CHECKS, ClimbOutcome.COULD_NOT_TELL)
    assert "m3" in first.reason
    assert (second.rung, "passed" in second.reason) == (REATTEMPT, False)


async def test_bad_link_costs_one_of_its_ends(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, patient(), world) as control:
        await assemble(control)
        world.machines["m1"].bad_links = {"m2"}
        await nan(control)
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
    assert "the link between m1 and m2" in record.climbs[0].reason
    assert world.done("evict") == [("m2", 1)]


async def test_person_may_deny_a_rung_and_an_observed_one_is_only_noted(
    temporal_address: str,
) -> None:
    world = FakeWorld(8)
    modes = {"checks": "observe", "evict": "approve"}
    async with controlled(temporal_address, patient(safety={"modes": modes}), world) as control:
        await assemble(control)
        await tell(control, sensed("m2", Symptom.GPU_UNAVAILABLE, confident=True))
        await control.until(lambda r: r.outcome is Outcome.HELD)
        held = await control.record()
        await control.incident().signal(ResolveIncident.deny, Approval("op", "it is in use"))
        await control.until(lambda r: r.first_step_at_s is not None)
        found = await climbs(control)
    assert "everstep deny 1" in held.missing
    assert found == [
        (EVICT, ClimbOutcome.DENIED),
        (CHECKS, ClimbOutcome.OBSERVED),
        (REATTEMPT, ClimbOutcome.DONE),
    ]
    assert world.done("evict") == []
    assert not [effect for effect in world.effects if effect.kind.startswith("check.")]


async def test_denied_eviction_of_a_machine_that_is_gone_is_asked_for_until_it_is_made(
    temporal_address: str,
) -> None:
    """After the restart that it does not answer, and again where nothing else is left to try."""
    world = FakeWorld(8)
    spec = patient(safety={"modes": {"evict": "approve"}}, replay={"steps": 2})
    async with controlled(temporal_address, spec, world) as control:
        await assemble(control)
        await control.lose("m2")
        asked: list[str] = []
        for yes in (False, False, True):
            await control.until(lambda r: r.outcome is Outcome.HELD and r.missing not in asked)
            asked.append((await control.record()).missing)
            if len(asked) == 3:
                with pytest.raises(WorkflowUpdateFailedError) as refused:
                    await control.incident().execute_update(  # pyright: ignore[reportUnknownMemberType]
                        ResolveIncident.decide, Decision(False, "op")
                    )
                assert "cannot be left out" in str(refused.value.cause)
            await control.incident().execute_update(  # pyright: ignore[reportUnknownMemberType]
                ResolveIncident.decide, Decision(yes, "op")
            )
        await control.until(lambda r: r.first_step_at_s is not None)
        record = await control.record()
        status = await control.status()
    first, second, third = asked
    assert first.startswith("evict: machine gone: m2 (lost)")
    assert second.startswith("evict: denied before, and seen again: machine gone: m2 (no answer)")
    assert third.startswith("evict: nothing left to try without the eviction of m2")
    assert "A yes evicts m2. To go on all the same: everstep approve 1" in third
    assert "deny" not in third
    assert [(c.rung, c.outcome, c.machines) for c in record.climbs] == [
        (EVICT, ClimbOutcome.DENIED, ("m2",)),
        (CHECKS, ClimbOutcome.COULD_NOT_TELL, ()),
        (REATTEMPT, ClimbOutcome.DONE, ()),
        (EVICT, ClimbOutcome.DENIED, ("m2",)),
        (EVICT, ClimbOutcome.DONE, ("m2",)),
    ]
    assert world.done("evict") == [("m2", 1)]
    assert (record.evicted, len(record.replacements)) == (("m2",), 1)
    assert status.assignment is not None
    assert "m2" not in status.assignment.machine_names()


async def test_new_code_that_fails_before_its_first_step_is_rolled_back(
    temporal_address: str,
) -> None:
    world = FakeWorld(8, training=False)
    earlier = (CodeVersion("v0", "/code/v0", proven=True),)
    async with controlled(temporal_address, patient(), world, earlier) as control:
        for number in range(6):
            await control.join(f"m{number}")
        await control.until_started(1)
        world.training = True
        await control.crash("m0", 1, signal=11)
        await control.until(lambda r: r.first_step_at_s is not None)
        assert await climbs(control) == [(ROLLBACK, ClimbOutcome.DONE)]
        await world.advance(2, 20)
        await control.finish()
        record = control.archive.records[1]
    assert record.outcome is Outcome.RECOVERED
    assert world.done("evict") == []


async def test_machine_evicted_twice_joins_only_by_a_persons_word(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(standbys=0), world) as control:
        await assemble(control)
        await control.lose("m1")
        await control.until(lambda r: r.outcome is Outcome.HELD)
        await control.join("m1")  # repaired, says its self-check
        await control.until(lambda r: r.first_step_at_s is not None)
        await world.advance(2, 20)
        await control.until_phase("training")
        await control.lose("m1")
        await control.until(lambda r: r.outcome is Outcome.HELD, 2)
        await control.join("m1")
        status = await control.status()
        assert (status.barred, status.pool) == (("m1",), ())
        assert [(m.machine, m.evictions) for m in status.machines] == [("m1", 2)]
        assert (await control.record(2)).outcome is Outcome.HELD
        await control.handle.signal(RunJob.admit, "m1")
        await control.until(lambda r: r.first_step_at_s is not None, 2)
        assert (await control.status()).barred == ()
