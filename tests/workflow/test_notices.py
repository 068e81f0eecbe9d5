"""Who is told what of an incident, through the real workflows and a real HTTP server."""

from __future__ import annotations

import logging

import pytest

from everstep.core.vocabulary import Outcome
from everstep.spec.job import JobSpec
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.messages import Approval
from tests.fakes.control import controlled
from tests.fakes.fleet import FakeWorld
from tests.fakes.webhooks import webhook
from tests.workflow.test_ladder import patient
from tests.workflow.test_recovery import assemble, spec_of

pytestmark = [pytest.mark.server]

CALLS = {"webhook_events": ["needs_approval", "paged"]}


def telling(spec: JobSpec, **safety: object) -> JobSpec:
    """A spec whose incidents are told."""
    fields = spec.model_dump() | {"safety": {"webhook": "TEST_WEBHOOK", **safety}}
    return JobSpec.model_validate(fields)


async def test_person_is_paged_once_though_the_first_try_fails(
    temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FakeWorld(8)
    with webhook(503, 200) as (address, posts):
        monkeypatch.setenv("TEST_WEBHOOK", address)
        spec = telling(patient(standby={"count": 0}), **CALLS)
        async with controlled(temporal_address, spec, world) as control:
            await assemble(control)
            await control.lose("m1")
            await control.until(lambda r: any("was paged" in e.text for e in r.timeline))
            await control.join("m9")
            await control.until(lambda r: r.first_step_at_s is not None)
            history = (await control.incident().fetch_history()).to_json()
    assert [post["key"] for post in posts] == [posts[0]["key"]] * 2
    assert (posts[1]["incident"], posts[1]["symptom"]) == (1, "agent_lost")
    assert "1 machine missing for slot 1" in posts[1]["reason"]
    assert "secret-path" not in history


async def test_webhook_that_refuses_does_not_hold_up_recovery(
    temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FakeWorld(8)
    with webhook(404) as (address, posts):
        monkeypatch.setenv("TEST_WEBHOOK", address)
        spec = telling(patient(standby={"count": 0}), **CALLS)
        async with controlled(temporal_address, spec, world) as control:
            await assemble(control)
            await control.lose("m1")
            await control.until(lambda r: any("answers 404" in e.text for e in r.timeline))
            await control.join("m9")
            await control.until(lambda r: r.first_step_at_s is not None)
    assert len(posts) == 1


async def test_an_incident_is_told_from_its_begin_to_its_end(
    temporal_address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Opened, a person's word wanted, closed: each once, and nowhere the address."""
    world = FakeWorld(8)
    caplog.set_level(logging.DEBUG)
    with webhook(200) as (address, posts):
        monkeypatch.setenv("TEST_WEBHOOK", address)
        spec = telling(spec_of(standbys=1), modes={"evict": "approve"})
        async with controlled(temporal_address, spec, world) as control:
            await assemble(control)
            await control.lose("m1")
            await control.until(lambda r: r.outcome is Outcome.HELD)
            await control.incident().signal(ResolveIncident.approve, Approval("ada"))
            await control.until(lambda r: r.first_step_at_s is not None)
            await world.advance(2, 20)
            await control.until(lambda r: r.outcome is Outcome.RECOVERED)
            await control.incident().result()
            history = (await control.incident().fetch_history()).to_json()
            timeline = [entry.text for entry in (await control.record()).timeline]
    assert [post["event"] for post in posts] == ["opened", "needs_approval", "closed"]
    assert len({post["key"] for post in posts}) == 3
    assert "agent_lost" in posts[0]["reason"]
    assert "evict: " in posts[1]["reason"]
    assert posts[2]["reason"].startswith("recovered: ")
    assert {post["job"] for post in posts} == {control.spec.name}
    # Only calls for a person are part of the story.
    assert sum("was paged" in text for text in timeline) == 1
    for kept in (history, caplog.text, str(posts)):
        assert "secret-path" not in kept


async def test_a_channel_is_told_as_slack_has_it(
    temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FakeWorld(8)
    with webhook(200) as (address, posts):
        monkeypatch.setenv("TEST_WEBHOOK", address)
        spec = telling(patient(standby={"count": 0}), webhook_format="slack")
        async with controlled(temporal_address, spec, world) as control:
            await assemble(control)
            await control.lose("m1")
            await control.until(lambda r: any("was paged" in e.text for e in r.timeline))
    assert [set(post) for post in posts] == [{"text", "key"}] * 2
    opened, paged = (post["text"] for post in posts)
    assert f"*:large_orange_diamond: {control.spec.name}: incident 1 opened*" in opened
    assert "1 machine missing for slot 1" in paged


async def test_what_nobody_wants_to_be_told_is_not_posted(
    temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that does not answer holds nothing up."""
    world = FakeWorld(8)
    with webhook(500) as (address, posts):
        monkeypatch.setenv("TEST_WEBHOOK", address)
        spec = telling(spec_of(standbys=1), webhook_events=["opened"])
        async with controlled(temporal_address, spec, world) as control:
            await assemble(control)
            await control.lose("m1")
            await control.until(lambda r: r.first_step_at_s is not None)
            await world.advance(2, 20)
            await control.until_phase("training")
            timeline = [entry.text for entry in (await control.record()).timeline]
    assert {post["event"] for post in posts} == {"opened"}
    assert len({post["key"] for post in posts}) == 1
    assert not any("paged" in text for text in timeline)
