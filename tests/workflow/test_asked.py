"""Evictions that a person is asked for, and what comes while the question is open."""

from __future__ import annotations

from functools import partial

import pytest

from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Check, Outcome, Rung, Symptom, Verdict
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.messages import Approval
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.unit import stack_texts as texts
from tests.workflow.test_hang import WIDE, quick
from tests.workflow.test_ladder import patient
from tests.workflow.test_recovery import assemble, sensed, tell
from tests.workflow.test_updates import ask, held_after, trains_with

pytestmark = [pytest.mark.server]

OP = Approval("op")
ASKED = {"safety": {"modes": {"evict": "approve"}, "max_evicted_ratio": 1.0}}


async def asked(control: Control, words: str) -> IncidentRecord:
    """Wait for the next question, in which these words stand."""
    await control.until(lambda r: r.outcome is Outcome.HELD and words in r.missing)
    return await control.record()


async def test_a_group_that_is_asked_for_stays_so(temporal_address: str) -> None:
    """Its ranks are stopped by now: where they stood is not asked again."""
    pipeline = {rank: texts.dump(texts.IRECV, rank) for rank in range(4, 8)}
    world = FakeWorld(16, stacks=pipeline)
    spec = quick(patient(**ASKED), **WIDE)
    async with controlled(temporal_address, spec, world) as control:
        await assemble(control)
        await control.hang(1, 7)
        question = (await asked(control, "the job hangs")).missing
        await ask(control, settings=(("lr", "1"),), urgent=True)
        await control.until(partial(held_after, "lr=1"))
        assert (await control.record()).missing == question
        await control.incident().signal(ResolveIncident.approve, OP)
        await trains_with(control)
        record = await control.record()
    assert [(c.rung, c.machines) for c in record.climbs] == [(Rung.EVICT, ("m2", "m3"))]


async def test_who_was_denied_is_not_asked_for_again(temporal_address: str) -> None:
    """Another machine's eviction is asked for, and overtaken: the denied one was not seen again."""
    world = FakeWorld(8)
    async with controlled(temporal_address, patient(**ASKED), world) as control:
        await assemble(control)
        world.machines["m3"].finds[Check.GPU] = Verdict.FAULTY
        await tell(control, sensed("m2", Symptom.GPU_UNAVAILABLE, confident=True))
        await asked(control, "m2: GPU 0")
        await control.incident().signal(ResolveIncident.deny, OP)
        await asked(control, "gpu test: m3")
        await control.lose("m1")
        await control.until(lambda r: r.outcome is Outcome.HELD and "m1" in r.finding.machines)
        await asked(control, "gpu test: m3")
        await control.incident().signal(ResolveIncident.deny, OP)
        record = await asked(control, "m1 (lost)")
    assert record.finding.machines == ("m1",)
    assert record.missing.startswith("evict: machine gone: m1 (lost). To go on")


async def test_whom_tests_named_is_asked_for_whatever_comes(temporal_address: str) -> None:
    """Training had come forward; yet no other incident begins, which would not know the tests."""
    world = FakeWorld(8)
    async with controlled(temporal_address, patient(**ASKED), world) as control:
        await assemble(control)
        world.machines["m3"].finds[Check.GPU] = Verdict.FAULTY
        await control.crash("m2", 4)
        await trains_with(control)
        await world.advance(2, 9)
        await control.crash("m2", 4)
        question = (await asked(control, "gpu test: m3")).missing
        await control.lose("m1")
        await control.until(lambda r: r.outcome is Outcome.HELD and "m1" in r.finding.machines)
        assert (await control.record()).missing == question
