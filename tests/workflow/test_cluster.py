"""What is asked of the cluster, and that no answer holds a recovery up."""

from __future__ import annotations

import pytest

from everstep.core.vocabulary import Check, Outcome, Verdict
from tests.fakes.control import controlled
from tests.fakes.fleet import FakeWorld
from tests.unit import stack_texts as texts
from tests.workflow.test_hang import WIDE, quick, restarted
from tests.workflow.test_recovery import assemble, spec_of

pytestmark = [pytest.mark.server]


async def test_the_cluster_shows_who_holds_which_slot(temporal_address: str) -> None:
    """Slots are ordered by rack; a standby that the cluster minds is left out."""
    world = FakeWorld(8)
    world.places = {"m0": "r2", "m1": "r1", "m2": "r2", "m3": "r1", "m4": "r9", "m5": "r9"}
    spec = spec_of(standbys=2).model_copy(update={"topology_label": "rack"})
    async with controlled(temporal_address, spec, world) as control:
        await assemble(control)
        await control.wait_for(lambda: world.shown == ("m1", "m3", "m0", "m2"), "the first slots")
        world.minds = {"m4": "node m4 is in quarantine"}
        world.budget = "pod m3: the budget needs 4 healthy pods and has 4"
        await control.lose("m3")
        await restarted(control)
        await control.wait_for(lambda: world.shown == ("m1", "m5", "m0", "m2"), "the new slots")
        await world.advance(2, 20)
        await control.until_archived(lambda r: r.outcome is Outcome.RECOVERED, 1)
        told = [entry.text for entry in control.archive.records[1].timeline]
        assert all(info.machine != "m4" for info in (await control.status()).pool)
    assert "standby m4 is refused: node m4 is in quarantine" in told
    assert any("eviction of m3 waits for its budget: pod m3" in text for text in told)
    assert control.archive.records[1].replacements == ("m5",)
    assert world.quarantined == {"m3"}


async def test_a_cluster_that_is_away_holds_nothing_up(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        world.cluster_away = True
        await control.lose("m1")
        await restarted(control)
        assert world.done("evict") == []
        record = await control.record()
        told = [entry.text for entry in record.timeline]
        assert "goes on while the cluster evicts m1" in told
        assert any(text.startswith("the cluster did not say whether it minds m4") for text in told)
        world.cluster_away = False
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
    assert world.done("evict") == [("m1", 1)], "it was carried on"


async def test_what_goes_for_its_group_is_shut_while_it_is_tested(temporal_address: str) -> None:
    """Who passes is released; who fails stays in quarantine."""
    world = FakeWorld(16, stacks={rank: texts.dump(texts.IRECV, rank) for rank in range(4, 8)})
    async with controlled(temporal_address, quick(spec_of(), **WIDE), world) as control:
        await assemble(control)
        world.machines["m3"].finds[Check.GPU] = Verdict.FAULTY
        await control.hang(1, 7)
        await control.wait_for(lambda: {"m2", "m3"} <= world.ever_quarantined, "both are shut")
        await restarted(control)
        await world.advance(2, 20)
        await control.until(lambda r: r.outcome is Outcome.RECOVERED)
    assert world.quarantined == {"m3"}


async def test_who_is_admitted_is_released(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        world.quarantined.add("m9")
        await control.handle.signal("admit", "m9")
        await control.wait_for(lambda: not world.quarantined, "its release")
