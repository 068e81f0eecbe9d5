"""What the operator's commands answer, against the real workflows on fake machines.

The commands' own code runs, in threads of this process, and reads a folder like that of a run.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError
from temporalio.worker import Worker

from everstep.activities.archive import FileArchive
from everstep.cli import commands
from everstep.core import names
from everstep.core.model import Assignment, MachineInfo
from everstep.core.record import IncidentRecord
from everstep.core.updates import Update, UpdateState
from everstep.core.vocabulary import Outcome
from everstep.spec.job import JobSpec
from everstep.workers import runtime
from everstep.workers.local.folder import RunFolder
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workflows import story
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import (
    Approval,
    Cancellation,
    JobInput,
    JobResult,
    JobState,
    UpdatesHeard,
    UpdatesMade,
)
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.workflow.test_recovery import assemble, spec_of

pytestmark = [pytest.mark.server]

ME = getpass.getuser()


class Desk:
    """Somebody who knows only the commands."""

    def __init__(self, control: Control, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.control = control
        self.folder = folder
        self._capsys = capsys

    async def call(self, *arguments: str) -> int:
        """The command's exit code."""

        def run() -> int:
            try:
                commands.call(arguments)
            except SystemExit as left:
                return int(left.code or 0)
            return 0

        return await asyncio.to_thread(run)

    async def says(self, code: int, *arguments: str) -> str:
        """What the command says, when it ends with this code."""
        self._capsys.readouterr()
        found = await self.call(*arguments)
        text = "".join(self._capsys.readouterr())
        assert found == code, text
        assert "Traceback" not in text
        return text

    async def at_once(self, *calls: tuple[str, ...]) -> tuple[list[int], str]:
        """Exit codes of several persons' commands, and what all of them say."""
        self._capsys.readouterr()
        codes = await asyncio.gather(*(self.call(*each) for each in calls))
        return codes, "".join(self._capsys.readouterr())

    async def held(self, incident: int = 1) -> None:
        await self.control.until(lambda r: r.outcome is Outcome.HELD, incident)

    async def trains(self, incident: int = 1) -> IncidentRecord:
        await self.control.until(lambda r: r.first_step_at_s is not None, incident)
        return await self.control.record(incident)

    async def updates(self) -> list[dict[str, Any]]:
        return list(json.loads(await self.says(0, "updates", str(self.folder), "--json")))


@asynccontextmanager
async def desk(
    address: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    asking: bool = True,
) -> AsyncGenerator[Desk]:
    """A job that trains, and a folder that says where."""
    # The commands set them for their process.
    monkeypatch.setenv("TEMPORAL_ADDRESS", "")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "")
    safety = {"modes": {"evict": "approve"}} if asking else {}
    spec = JobSpec.model_validate(spec_of(standbys=1).model_dump() | {"safety": safety})
    async with controlled(address, spec, FakeWorld(8)) as control:
        await assemble(control)
        RunFolder(folder).write_state(
            job=control.spec.name,
            pid=os.getpid(),
            phase="running",
            started_at_s=time.time(),
            temporal={"own": False, "address": address, "namespace": "default"},
        )
        yield Desk(control, folder, capsys)


async def test_two_operators_answer_at_once(
    temporal_address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One word counts, and the other one is told so."""
    async with desk(temporal_address, tmp_path, capsys, monkeypatch) as here:
        run = ("--run", str(tmp_path))
        missing = await here.says(2, "approve", "1", *run)
        assert f"incident 1: there is none of that number in {tmp_path}. Known: none." in missing
        await here.control.lose("m1")
        await here.held()
        codes, text = await here.at_once(("approve", "1", *run), ("approve", "1", *run))
        assert sorted(codes) == [0, 2], text
        assert "waits for nobody's word" in text
        record = await here.trains()
        late = await here.says(2, "approve", "1", *run)
        # Whether it is closed by now or not.
        assert "waits for nobody's word" in late
        await here.control.world.advance(record.attempt_after, 40)
        # The record says so a moment before it is archived.
        await here.control.until_archived(lambda r: r.outcome is Outcome.RECOVERED, 1)
        # As a run's own archive keeps it.
        archive = FileArchive(lambda job: RunFolder(tmp_path).incidents)
        await archive.save_incident(here.control.archive.records[1])
        closed = await here.says(2, "deny", "1", *run)
        assert "incident 1: it is recovered and waits for nobody's word" in closed
    words = [e.text for e in record.timeline if e.text.startswith(("approved", "denied"))]
    assert words == [f"approved by {ME}"]


async def test_an_answer_counts_for_the_question_that_was_read(
    temporal_address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits for a machine cannot be approved, by command or by the web UI's signal."""
    async with desk(temporal_address, tmp_path, capsys, monkeypatch, asking=False) as here:
        run = ("--run", str(tmp_path))
        await here.control.lose("m1")
        await here.trains()
        await here.control.lose("m4")
        await here.held(2)
        refused = await here.says(2, "approve", "2", *run)
        assert "refused: incident 2: it is held and waits for nobody's word" in refused
        assert "but: 1 machine missing for slot" in refused
        shown = await here.says(0, "status", str(tmp_path))
        assert "1 machine missing for slot 1" in shown
        await here.control.incident(2).signal(ResolveIncident.approve, Approval("eve"))
        await here.control.until(lambda r: any("eve" in e.text for e in r.timeline), 2)
        record = await here.control.record(2)
    told = [entry.text for entry in record.timeline]
    assert record.outcome is Outcome.HELD
    assert "approved by eve, though nothing was asked" in told
    assert not any(f"by {ME}" in text for text in told)


async def test_two_updates_at_once_while_an_incident_is_open(
    temporal_address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(temporal_address, tmp_path, capsys, monkeypatch) as here:
        place = str(tmp_path)
        await here.control.lose("m1")
        await here.held()
        codes, text = await here.at_once(
            ("hot-update", place, "--set", "lr=1"), ("hot-update", place, "--set", "wd=2")
        )
        assert codes == [0, 0], text
        assert text.count("the next restart of incident 1 makes it, which is held: ") == 2
        assert await here.call("hot-update", place, "--set", "lr=9") == 0
        assert "update 3 is withdrawn" in await here.says(0, "updates", place, "--cancel", "3")
        twice = await here.says(2, "updates", place, "--cancel", "3")
        assert "refused: update: update 3 does not wait any more, it is withdrawn" in twice
        assert "there is no update 7" in await here.says(2, "updates", place, "--cancel", "7")
        nothing = await here.says(2, "hot-update", place)
        assert "nothing would change" in nothing
        assert await here.call("approve", "1", place) == 0
        record = await here.trains()
        states = [one["state"] for one in await here.updates()]
        made = await here.says(2, "updates", place, "--cancel", "1")
        assert "update 1 does not wait any more, it is made, as v1+" in made
        status = await here.control.status()
    assert states == ["applied", "applied", "cancelled"]
    assert record.evicted == ("m1",)
    assert status.assignment is not None
    assert dict(status.assignment.settings) == {"lr": "1", "wd": "2"}


async def test_updates_of_a_held_incident_that_are_rolled_back_together(
    temporal_address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is said of them while the incident is still open."""
    async with desk(temporal_address, tmp_path, capsys, monkeypatch) as here:
        place, control = str(tmp_path), here.control
        await control.lose("m1")
        await here.held()
        waiting = await here.says(0, "hot-update", place, "--set", "typo=1")
        assert (
            "the next restart of incident 1 makes it, which is held: evict: machine gone: m1"
            in " ".join(waiting.split())
        )
        (waits,) = await here.updates()
        day = story.day(waits["due_at_s"])
        assert waits["due_at_s"] == waits["at_s"] + 24 * 3600
        assert day in await here.says(0, "updates", place)
        urgent = await here.says(0, "hot-update", place, "--set", "lr=1", "--urgent")
        assert (
            "the next restart of incident 1 makes it, which is held: evict: machine gone: m1"
            in " ".join(urgent.split())
        )
        await control.until(
            lambda r: (
                r.outcome is Outcome.HELD and sum("evict: " in e.text for e in r.timeline) == 2
            )
        )
        control.world.training = False
        assert await here.call("approve", "1", place) == 0
        await control.until_started(2)
        control.world.training = True
        await control.crash("m2", 5, 11)
        await here.trains()
        found = await here.updates()
        again = await here.says(2, "updates", place, "--cancel", "1")
        assert (await control.status()).active_incident == 1
    assert [one["state"] for one in found] == ["rolled_back", "rolled_back"]
    for one, other, command in zip(found, (2, 1), ("typo=1", "lr=1"), strict=True):
        assert one["outcome"].startswith(f"rolled back together with update {other}, ")
        assert one["outcome"].endswith(f"alone: everstep hot-update --set {command}")
    assert "does not wait any more, it is rolled back together with update 2" in again


async def test_withdrawn_while_it_is_being_made(
    temporal_address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever comes first: what the command says is what has happened."""
    async with desk(temporal_address, tmp_path, capsys, monkeypatch) as here:
        place = str(tmp_path)
        await here.control.lose("m1")
        await here.held()
        assert await here.call("hot-update", place, "--set", "lr=1") == 0
        codes, text = await here.at_once(
            ("approve", "1", place), ("updates", place, "--cancel", "1")
        )
        await here.trains()
        (update,) = await here.updates()
        status = await here.control.status()
    assert status.assignment is not None
    came_first = codes[1] == 0
    assert codes == [0, 0 if came_first else 2], text
    assert update["state"] == ("cancelled" if came_first else "applied")
    assert status.assignment.settings == (() if came_first else (("lr", "1"),))


@asynccontextmanager
async def with_incident_of_ours(address: str) -> AsyncGenerator[WorkflowHandle[RunJob, JobResult]]:
    """A job whose open incident is this test: it says what it likes, whenever it likes."""
    client = await Client.connect(address, data_converter=DATA_CONVERTER)
    name = f"job-{uuid.uuid4().hex[:8]}"
    spec = spec_of().model_copy(update={"name": name})
    slots = tuple(MachineInfo(f"m{n}", "h", 1, 2, 3, 0.0) for n in range(4))
    update = Update(1, "", "", (("lr", "1"),), "ada", "", 1.0, 1e12)
    state = JobState(Assignment(1, slots, "v1"), incidents=1, active=1, updates=[update])
    worker = Worker(
        client,
        task_queue=name,
        workflows=[RunJob],
        workflow_runner=runtime.workflow_runner(),
        workflow_failure_exception_types=list(runtime.WORKFLOW_FAILURE_TYPES),
    )
    async with worker:
        job = JobInput(spec, "v1", "/code/v1")
        handle = await client.start_workflow(
            RunJob.run, args=[job, state], id=names.job_workflow_id(name), task_queue=name
        )
        try:
            yield handle
        finally:
            with suppress(RPCError):
                await handle.terminate("test over")


@pytest.mark.parametrize("made", [True, False])
async def test_a_withdrawal_waits_for_what_the_incident_says(
    made: bool, temporal_address: str
) -> None:
    async with with_incident_of_ours(temporal_address) as job:
        asked = asyncio.create_task(
            job.execute_update(RunJob.cancel_update, Cancellation(1, "ada"))  # pyright: ignore[reportUnknownMemberType]
        )
        done, _ = await asyncio.wait([asked], timeout=1.0)
        assert not done
        if made:
            await job.signal(RunJob.updates_made, UpdatesMade((1,), "v1+1"))
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await asyncio.wait_for(asked, 30)
            assert "a restart was making update 1 just then" in str(refused.value.cause)
        else:
            await job.signal(RunJob.updates_heard, UpdatesHeard((1,)))
            await asyncio.wait_for(asked, 30)
        status = await job.query(RunJob.status)
    assert [one.state for one in status.updates] == [
        UpdateState.APPLIED if made else UpdateState.CANCELLED
    ]
    assert [note.text for note in status.notes] == ([] if made else ["update 1 withdrawn by ada"])
