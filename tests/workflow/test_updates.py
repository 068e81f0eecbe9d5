"""Changes of code and arguments through the real workflows, on fake machines."""

# The client's own types are partly unknown.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import time
from functools import partial

import pytest
from temporalio.client import WorkflowUpdateFailedError

from everstep.core.memory import CodeVersion
from everstep.core.model import Alert, Assignment
from everstep.core.record import IncidentRecord
from everstep.core.report import report
from everstep.core.updates import Settings, UpdateState
from everstep.core.vocabulary import Observer, Outcome, Rung, Symptom
from everstep.spec.job import JobSpec
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import Approval, Cancellation, UpdateAnswer, UpdateRequest
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.workflow import histories
from tests.workflow.test_ladder import patient
from tests.workflow.test_recovery import assemble, sensed, spec_of, tell

pytestmark = [pytest.mark.server]


async def ask(
    control: Control,
    code: str = "",
    settings: Settings = (),
    urgent: bool = False,
    window_s: float = 3600.0,
) -> UpdateAnswer:
    request = UpdateRequest("ada", code, settings, "faster", urgent, window_s)
    return await control.handle.execute_update(RunJob.hot_update, request)


async def trains_with(control: Control) -> Assignment:
    """What the first new attempt runs, once it makes steps."""
    await control.until(lambda r: r.first_step_at_s is not None)
    status = await control.status()
    assert status.assignment is not None
    return status.assignment


def held_after(words: str, record: IncidentRecord) -> bool:
    """Whether it is held, and was told something before."""
    told = any(words in entry.text for entry in record.timeline)
    return told and record.outcome is Outcome.HELD


async def test_urgent_update_stops_training_at_once(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        answer = await ask(control, "/code/v2", (("lr", "3e-4"),), urgent=True)
        now = await trains_with(control)
        record = await control.record()
        status = await control.status()
    assert answer.update is not None
    assert sorted({machine for machine, _ in world.done("prepare")}) == [f"m{i}" for i in range(5)]
    assert [climb.rung for climb in record.climbs] == [Rung.UPDATE]
    assert (now.code_directory, now.settings) == ("/code/v2", (("lr", "3e-4"),))
    order = world.machines["m0"].orders[-1]
    assert (order.code_directory, order.settings, order.restore_step) == (
        "/code/v2", (("lr", "3e-4"),), 7,
    )  # fmt: skip
    assert record.evicted == ()
    assert "update 1 by ada: code v2, lr=3e-4 (faster), urgent" in record.climbs[0].reason
    assert [one.state for one in status.updates] == [UpdateState.APPLIED]


async def test_updates_join_the_restart_of_a_failure_in_order(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        await ask(control, "/code/v2", (("lr", "1"),))
        await ask(control, settings=(("lr", "2"),))
        await ask(control, "/code/v9")
        await control.handle.execute_update(RunJob.cancel_update, Cancellation(3, "ada"))
        assert (await control.status()).incidents == 0
        await control.crash("m1", 2)
        now = await trains_with(control)
        record = await control.record()
        status = await control.status()
    assert record.climbs[0].rung is Rung.REATTEMPT
    assert (now.code_directory, now.settings) == ("/code/v2", (("lr", "2"),))
    states = [one.state for one in status.updates]
    assert states == [UpdateState.APPLIED, UpdateState.APPLIED, UpdateState.CANCELLED]
    assert len({one.became for one in status.updates[:2]}) == 1


async def test_what_opened_an_incident_stays_its_name_when_an_update_joins_it(
    temporal_address: str,
) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(standbys=0), world) as control:
        await assemble(control)
        await control.lose("m3")
        await control.until(lambda r: r.outcome is Outcome.HELD)
        await ask(control, settings=(("lr", "1"),), urgent=True)
        await control.until(lambda r: len(r.climbs) == 2 and r.outcome is Outcome.HELD)
        held = await control.record()
        await control.join("m8")
        await trains_with(control)
        record = await control.record()
        told = histories.incident(await control.incident(1).fetch_history())
    assert [climb.rung for climb in record.climbs] == [Rung.EVICT, Rung.UPDATE]
    assert record.finding.symptom is Symptom.CODE_DATA_ADJUSTMENT
    assert (record.opened_by.symptom, record.opened_by.machines) == (Symptom.AGENT_LOST, ("m3",))
    assert record.later_symptoms == (Symptom.CODE_DATA_ADJUSTMENT,)
    assert told.symptom == "agent_lost"
    # While it waits, nothing has resolved it.
    found = report("job", world.seen, [held], 0.0, world.seen[-1].at_s)
    assert found.mechanisms == ()
    assert [(one.symptom, one.resolved()) for one in found.symptoms] == [("agent_lost", "open 1")]


async def test_update_is_made_when_its_window_ends(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        await ask(control, "/code/v3", window_s=600.0)
        await ask(control, "/code/v2", window_s=0.5)
        now = await trains_with(control)
        record = await control.record()
    assert now.code_directory == "/code/v2"
    assert "its window is over" in record.climbs[0].reason


async def test_what_a_machine_refuses_stops_nothing(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        world.machines["m4"].refuses_code.add("/code/bad")
        answer = await ask(control, "/code/bad", urgent=True)
        status = await control.status()
    assert (answer.update, status.incidents, status.updates) == (None, 0, ())
    assert answer.refused == ("m4: train.py, line 3: invalid syntax",)


async def test_code_that_fails_at_its_first_step_is_rolled_back(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, patient(), world) as control:
        await assemble(control)
        world.training = False
        await ask(control, "/code/v2", (("lr", "9"),), urgent=True)
        await control.until_started(2)
        world.training = True
        await control.crash("m1", 2, 11)
        now = await trains_with(control)
        record = await control.record()
    assert [climb.rung for climb in record.climbs] == [Rung.UPDATE, Rung.ROLLBACK]
    assert (now.code_directory, now.settings, now.code_version) == ("/code/v1", (), "v1")
    assert any("is taken out, v1 takes its place" in entry.text for entry in record.timeline)


async def test_code_that_cannot_be_made_ready_never_starts(temporal_address: str) -> None:
    world = FakeWorld(8)
    world.refused_code.add("/code/v1")
    code = {"directory": ".", "prepare": ["make"]}
    spec = JobSpec.model_validate({**spec_of().model_dump(), "code": code})
    earlier = (CodeVersion("v0", "/code/v0", proven=True),)
    async with controlled(temporal_address, spec, world, earlier) as control:
        for number in range(5):
            await control.join(f"m{number}")
        now = await trains_with(control)
        record = await control.record()
    assert [climb.rung for climb in record.climbs] == [Rung.ROLLBACK]
    assert "m0: train.py, line 3: invalid syntax" in record.finding.reason
    assert (now.attempt, now.code_directory) == (2, "/code/v0")
    assert {attempt for _, attempt in world.done("start")} == {2}


async def test_urgent_update_leaves_an_eviction_asked_for(temporal_address: str) -> None:
    """What spoke for it is evidence of the round that the update begins, too."""
    world = FakeWorld(8)
    spec = patient(safety={"modes": {"evict": "approve"}})
    async with controlled(temporal_address, spec, world) as control:
        await assemble(control)
        await tell(control, sensed("m2", Symptom.GPU_UNAVAILABLE, confident=True))
        await control.until(lambda r: r.outcome is Outcome.HELD)
        question = (await control.record()).missing
        for lr in ("1", "2"):
            await ask(control, settings=(("lr", lr),), urgent=True)
            await control.until(partial(held_after, f"lr={lr}"))
            assert (await control.record()).missing == question
        await control.incident().signal(ResolveIncident.approve, Approval("op"))
        now = await trains_with(control)
        record = await control.record()
    assert dict(now.settings) == {"lr": "2"}
    assert [(climb.rung, climb.machines) for climb in record.climbs] == [(Rung.EVICT, ("m2",))]


async def test_urgent_update_during_probation(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, patient(), world) as control:
        await assemble(control)
        await control.crash("m1", 2)
        await trains_with(control)
        await ask(control, "/code/v2", urgent=True)
        await control.until(lambda r: r.first_step_at_s is not None, incident=2)
        status = await control.status()
        first = await control.record(1)
    assert first.outcome is Outcome.RECOVERED
    told = [entry.text for entry in first.timeline]
    assert "stopped for a change during probation" in told
    assert told[-1] == "closed: a change is made"
    assert status.assignment is not None
    assert status.assignment.code_directory == "/code/v2"


async def test_a_change_that_was_made_before_is_not_why_an_incident_closes(
    temporal_address: str,
) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(probation_s=2.0), world) as control:
        await assemble(control)
        await control.crash("m1", 2)
        await trains_with(control)
        wish = "a change that joined the restart"
        change = Symptom.CODE_DATA_ADJUSTMENT
        late = Alert(Observer.PERSON, change, time.time(), wish, attempt=1)
        await control.incident().signal(ResolveIncident.alerts, [late])
        await control.until(lambda r: any(wish in entry.text for entry in r.timeline))
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
        record = await control.record()
        await control.finish()
    assert [entry.text for entry in record.timeline][-1] == "closed: training is stable"


async def test_a_signal_does_the_same(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        nothing = UpdateRequest("eve", urgent=True)
        await control.handle.signal(RunJob.push_update, nothing)
        request = UpdateRequest("ada", "/code/v2", (), "faster", urgent=True)
        await control.handle.signal(RunJob.push_update, request)
        now = await trains_with(control)
        notes = [note.text for note in (await control.status()).notes]
    assert now.code_directory == "/code/v2"
    assert any("update of eve refused" in note for note in notes)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (UpdateRequest("ada"), "it changes nothing"),
        (UpdateRequest("ada", settings=(("RANK", "1"),)), "set by Everstep"),
        (UpdateRequest("ada", "/code/v2", window_s=0.0), "not above 0"),
        (Cancellation(7, "ada"), "there is no update 7"),
    ],
)
async def test_what_could_never_be_made_is_refused(
    temporal_address: str, request_: UpdateRequest | Cancellation, said: str
) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        which = "cancel_update" if isinstance(request_, Cancellation) else "hot_update"
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await control.handle.execute_update(which, request_)
    assert said in str(refused.value.cause)
