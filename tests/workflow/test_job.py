"""The job's own life: long histories, and what it waits for before it starts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from temporalio.testing import WorkflowEnvironment

from everstep.core.model import Alert
from everstep.core.vocabulary import Observer, Outcome, Symptom
from everstep.workflows.job import RunJob
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.fakes.servers import register, server_path
from tests.workflow.test_recovery import assemble, spec_of

pytestmark = [pytest.mark.server]


MAX_EVENTS = 1_000
"""So that it does not take long to come there."""


async def flood(control: Control, signals: int) -> None:
    """Alerts that concern nothing which runs any more: dropped, but part of the history."""

    async def one(number: int) -> None:
        alert = Alert(
            Observer.AGENT, Symptom.PROCESS_CRASH, time.time(), "old news", 0, "m0", number
        )
        await control.handle.signal(RunJob.report_alerts, [alert])

    for start in range(0, signals, 100):
        await asyncio.gather(*(one(start + number) for number in range(100)))
        # Answered when all that came before has been taken in. A flood without any pause would keep
        # the server from ending the run: no run is ended while signals wait for it.
        await control.status()


async def test_job_continues_as_new_and_loses_nothing(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world, max_events=MAX_EVENTS) as control:
        await assemble(control)
        first_run = (await control.handle.describe()).run_id
        await flood(control, MAX_EVENTS // 2)
        await control.crash("m2", 5)
        floods = 0
        while (await control.handle.describe()).run_id == first_run:
            floods += 1
            assert floods <= MAX_EVENTS // 200, "it goes on for ever in one run"
            await flood(control, 200)
        await control.until(lambda record: record.first_step_at_s is not None)
        await world.advance(2, 20)
        await control.until(lambda record: record.outcome is Outcome.RECOVERED)
        await control.lose("m1")
        await control.until(lambda record: record.first_step_at_s is not None, incident=2)
        await world.advance(3, 40)
        await control.until(lambda record: record.outcome is Outcome.RECOVERED, incident=2)
        result = await control.finish()
    assert (result.attempts, result.incidents) == (3, 2)
    assert world.done("evict") == [("m1", 2)]


async def test_first_start_does_not_wait_for_a_standby_for_ever() -> None:
    world = FakeWorld(8)
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=server_path()
    ) as environment:
        client = environment.client
        await register(client)
        address = client.service_client.config.target_host
        async with controlled(address, spec_of(standbys=1), world) as control:
            for number in range(4):
                await control.join(f"m{number}")
            assert (await control.status()).phase == "gathering machines"
            await environment.sleep(61)
            await control.training(1)
            status = await control.status()
            assert status.assignment is not None
            assert status.assignment.machine_names() == ["m0", "m1", "m2", "m3"]
            assert (await control.finish()).attempts == 1


async def test_what_ranks_say_is_noted_once_or_opens_one_incident(temporal_address: str) -> None:
    world = FakeWorld(8)
    async with controlled(temporal_address, spec_of(), world) as control:
        await assemble(control)
        at_s = time.time()

        def said(symptom: Symptom, attempt: int, subject: str, at_s: float) -> Alert:
            return Alert(Observer.ANALYZER, symptom, at_s, f"{symptom}", attempt, subject=subject)

        jump = said(Symptom.LOSS_SPIKE, 1, "loss", at_s)
        later = said(Symptom.LOSS_SPIKE, 1, "loss", at_s + 5.0)
        slow = said(Symptom.MFU_DECLINE, 1, "pace", at_s)
        older = said(Symptom.LOSS_SPIKE, 0, "loss", at_s)
        # An analyzer that was started anew tells things again.
        await control.handle.signal(RunJob.report_alerts, [jump, slow, jump, later, older])
        await control.handle.signal(RunJob.report_alerts, [slow])
        status = await control.status()
        assert [(a.symptom, a.at_s) for a in status.noted] == [
            (Symptom.LOSS_SPIKE, at_s),
            (Symptom.MFU_DECLINE, at_s),
            (Symptom.LOSS_SPIKE, at_s + 5.0),
        ]
        assert status.incidents == 0
        hang = said(Symptom.JOB_HANG, 1, "", at_s)
        await control.handle.signal(RunJob.report_alerts, [hang])
        await control.handle.signal(RunJob.report_alerts, [replace(hang, at_s=at_s + 1.0)])
        await control.until(lambda record: record.first_step_at_s is not None)
        await world.advance(2, 20)
        await control.until(lambda record: record.outcome is Outcome.RECOVERED)
        assert (await control.record()).finding.symptom is Symptom.JOB_HANG
        await control.finish()
        assert (await control.status()).incidents == 1
