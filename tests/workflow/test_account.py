"""A run with six mixed incidents and a controller crash: its report, beside its histories.

The real workflows on fake machines, which train by the clock of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from everstep.activities.archive import FileArchive
from everstep.cli import commands
from everstep.core.vocabulary import Outcome, Spent
from everstep.spec.job import JobSpec
from everstep.workers.account import Account
from everstep.workers.local.folder import RunFolder
from everstep.workflows.job import RunJob
from everstep.workflows.messages import UpdateRequest
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.workflow import histories
from tests.workflow.histories import Told
from tests.workflow.test_recovery import spec_of

pytestmark = [pytest.mark.server]

STEP_S = 0.05
NEAR_S = 0.02
"""Sums of floats, and times that travel as JSON."""


async def train(control: Control) -> None:
    """Let ranks make steps for as long as all of an attempt run."""
    world = control.world
    while True:
        await asyncio.sleep(STEP_S)
        newest = world.board.newest
        running = [m for m in world.machines.values() if m.running]
        attempts = {machine.attempt for machine in running}
        ranks = sum(len(machine.running) for machine in running)
        if newest is not None and ranks == world.world_size and attempts == {newest.attempt}:
            await world.advance(newest.attempt, newest.step + 1)


async def over(control: Control, incident: int, attempt: int) -> None:
    """Wait until an incident is over, and a few steps more."""
    await control.until(lambda r: r.outcome is Outcome.RECOVERED, incident)
    await control.until_phase("training")
    await control.world.wait_for_step(attempt, control.world.seen[-1].step + 3)


async def live(control: Control) -> None:
    """A killed rank, a lost machine, one too many, other arguments, bad arithmetic, a crash."""
    world = control.world
    for number in range(5):
        await control.join(f"m{number}")
    await control.training(1)
    training = asyncio.create_task(train(control))
    await world.wait_for_step(1, 5)
    await control.crash("m2", 5)
    await over(control, 1, 2)
    await control.lose("m1")
    await over(control, 2, 3)
    await control.lose("m3")
    await control.until(lambda r: r.outcome is Outcome.HELD, 3)
    await control.join("m8")
    await over(control, 3, 4)
    request = UpdateRequest("ada", settings=(("lr", "1"),), urgent=True)
    await control.handle.execute_update(RunJob.hot_update, request)  # pyright: ignore[reportUnknownMemberType]
    await over(control, 4, 5)
    await control.join("m9")
    world.machines["m2"].arithmetic = "wrong"
    await control.nan(5)
    await over(control, 5, 6)
    await control.crash("m0", 1)
    # All workflows are read anew in the middle of the sixth.
    await control.controllers.replace()
    await over(control, 6, 7)
    training.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await training
    await control.finish()


def told_by_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        commands.call(["report", str(folder), "--json"])
    assert left.value.code == 0
    return dict(json.loads(capsys.readouterr().out))


async def account_of(control: Control) -> dict[Spent, float]:
    """The ledger as the analyzer keeps it."""
    account = Account(control.world.seen)
    following = asyncio.create_task(account.follow(control.client, control.spec.name))
    async with asyncio.timeout(control.patience_s):
        while not account.spent():
            await asyncio.sleep(0.05)
    following.cancel()
    return account.spent()


async def test_the_report_is_what_the_histories_say(
    temporal_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = FakeWorld(8)
    fields = spec_of(standbys=1).model_dump() | {"safety": {"max_evicted_ratio": 1.0}}
    spec = JobSpec.model_validate(fields)
    async with controlled(temporal_address, spec, world, most_incidents=6) as control:
        await live(control)
        metered = await account_of(control)
        from_s, to_s = histories.job_times(await control.handle.fetch_history())
        told: list[Told] = []
        for number in range(1, 7):
            await control.incident(number).result()
            told.append(histories.incident(await control.incident(number).fetch_history()))
        result = await control.handle.result()
    folder = RunFolder(tmp_path)
    folder.write_state(
        job=control.spec.name,
        phase="finished",
        job_started_at_s=result.started_at_s,
        ended_at_s=result.finished_at_s,
    )
    folder.steps.write_text("".join(json.dumps(asdict(seen)) + "\n" for seen in world.seen))
    for record in control.archive.records.values():
        await FileArchive(lambda _: folder.incidents).save_incident(record)
    found = await asyncio.to_thread(told_by_command, tmp_path, capsys)

    # The job's own times, to the length of its last workflow task.
    assert found["from_s"] == pytest.approx(from_s, abs=NEAR_S)
    assert found["to_s"] == pytest.approx(to_s, abs=1.0)
    # All classes add up to the wall clock: of the report, and of the server's own.
    assert sum(found["spent"].values()) == pytest.approx(found["to_s"] - found["from_s"], abs=1e-6)
    assert sum(found["spent"].values()) == pytest.approx(to_s - from_s, abs=1.0)

    histories.compare(found, told, world.seen, near_s=6 * NEAR_S)
    assert dict(found["mechanisms"]) == {"evict": 3, "reattempt": 2, "update": 1}
    assert found["spent"]["held"] > 0
    # What the analyzer's metrics say, who sees one step after the other.
    for kind in ("detect", "locate", "restart", "held", "update", "productive", "redone"):
        assert metered[Spent(kind)] == pytest.approx(found["spent"][kind], abs=0.5), kind
